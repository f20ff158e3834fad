"""The `agentmem` command: one file per command, `supervisor.py` for `agentmem up`, `client.py` for all the others."""
