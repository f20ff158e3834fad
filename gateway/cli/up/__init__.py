"""`agentmem up`: store, worker and gateway, kept running until Ctrl-C.

command.py      the command
settings.py     its settings, and the services' arguments
preflight.py    checks before the start
lock.py         one `agentmem up` per data directory
readiness.py    which services are ready
supervisor.py   starts, restarts and stops services
background.py   `agentmem up` for another command, and models that are fetched first
log_file.py     the log of a stack in the background
openblas.py     OpenBLAS for the worker
"""
