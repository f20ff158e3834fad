"""Models on a hub: `agentmem models search` and `agentmem models pull`, run as `python -m inference_service.hub`.

candidates.py  a hub's models, and whether they would run here
report.py      candidates for people and machines
commands.py    the commands
"""
