"""Models on a hub, before and while they are fetched: `agentmem models search` and `agentmem models pull`.

They run as a process, `python -m inference_service.hub`, because only the worker's package knows models.

candidates.py  what a hub says of models, and whether they would run here; nothing is fetched but config.json
report.py      candidates for people and machines
commands.py    the commands
"""
