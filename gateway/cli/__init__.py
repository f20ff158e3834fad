"""The `agentmem` command: one file per command, `supervisor.py` for `agentmem up`, `client.py` for all the others.

`run/` is `agentmem run`, and `report/` what it writes with `--report`; `workflows.py` is what there is to do with runs.
`top/` is `agentmem top`.
`doctor/` is `agentmem doctor`, with the halves in the other packages that it runs.
"""
