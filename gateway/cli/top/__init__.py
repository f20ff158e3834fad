"""`agentmem top`: one screen of processes, models, latency, cache and agents.

sources.py reads the metrics pages (metrics.py) and asks the gateway for models and agents; measure.py compares each
reading with the one before. The result is a dict, as --json writes it, deploy/top.schema.json describes it, and
screen.py shows it.
"""
