"""`agentmem up`: store, worker and gateway, kept running until Ctrl-C.

command.py, parameters.py     the command, its flags, and those of other servers
settings.py                   the services' arguments
preflight.py, variables.py    before the start
default_model.py, lock.py     the same: the model, and the data directory
supervisor.py, readiness.py   starts, restarts and stops services
output.py, status.py          for programs lines, at a terminal a status and a live line
background.py, log_file.py    `agentmem up` for another command
fetching.py, child.py         models that are downloaded first; modules as children
openblas.py                   OpenBLAS for the worker
bundled_openblas.py           that of a package, where the system has none
checks.py                     what `agentmem doctor` checks of all this
"""
