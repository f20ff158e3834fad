"""Several nodes on one ledger: a worker that computes nothing, the check of what clients saw, and a simulation of many.

commits.py           the command: commits per second of ledgers on SQLite and PostgreSQL
history.py           what clients were answered, held against what the ledger has; `lists.py` reads that
scripted_worker.py   a worker without MLX, whose turns append their request_id; with the other scripted_ files

postgres.py      servers of PostgreSQL, and `postgres_pair.py` with a synchronous standby
machines.py      nodes as processes
clusters.py      nodes that know each other, and which of them has an agent
speakers.py      agents that take turn after turn at gateways
failover.py      the command: a node is killed, leaves, and the primary is killed
drill.py         the command: `wanderers.py` ask any node, to which `faults.py` does things; its network is
                 `benchmarks/proxy.py`

inputs.py       what the simulation takes as given, with its sources, and what a turn costs by it
policies.py     on which node a turn runs: the four that are compared
gateways.py     what gateways know of the nodes
nodes.py        one node: slots, a disk, a network card, and a GPU that computes prompts and answers
events.py       agents, gateways, nodes and the loss of one, event by event
simulation.py   the command: all policies, and what is said of them
"""
