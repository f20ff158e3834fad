"""`agentmem up`: store, worker and gateway, kept running until Ctrl-C.

command.py, parameters.py     the command, its flags, and those of other servers
settings.py                   the services' arguments
preflight.py, variables.py    before the start
default_model.py, lock.py     the same: the model, and the data directory
supervisor.py, readiness.py   starts, restarts and stops services
background.py, log_file.py    `agentmem up` for another command, and models that are downloaded first
openblas.py                   OpenBLAS for the worker
bundled_openblas.py           that of a package, where the system has none
"""
