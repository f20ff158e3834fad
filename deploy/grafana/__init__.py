"""The Grafana dashboards, written with Grafana's own builders, whose types know what Grafana takes.

panels.py     what all dashboards have in common: variables, legends, how a panel looks
queries.py    the few shapes of PromQL that panels ask with
overview.py   are turns quick, how many, how many wait
cache.py      what is reused, and from where; the pool, the disk, what goes between them
agents.py     agents by tier, turns, how conversations found their agent, workflows
services.py   RPCs, HTTP, processes
generate.py   writes dashboards/*.json, which are checked in: `make dashboards`; a test holds them current

The rest is Grafana's provisioning: provisioning/ names the datasource and dashboards/.
"""
