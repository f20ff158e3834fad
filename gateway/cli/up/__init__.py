"""`agentmem up`: store, worker and gateway, kept running until Ctrl-C.

command.py      the command: its checks, the services, and when each is ready
settings.py     its settings, and the arguments of the three services
preflight.py    what is checked before anything starts
lock.py         one `agentmem up` per data directory
readiness.py    which services run, and whether they are ready
supervisor.py   starts services, restarts those that die, stops all
background.py   an `agentmem up` of another command, in the background; and models that are fetched first
log_file.py     what a stack in the background writes, kept short
openblas.py     whether OpenBLAS is preloaded into the worker
"""
