"""The gateway's half of `agentmem doctor`: `python -m gateway.cli.doctor.here`, with the flags of `agentmem up`.

__main__.py   the checks in order
versions.py   Python and libraries against what Agentmem asks for, and against its lock
limits.py     open files
sockets.py    the run directory, and how long its sockets' paths are
running.py    which services run already, and whether they are ready
ports.py      whether ports are free, or whose they are
"""
