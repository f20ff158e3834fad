"""`agentmem run FILE` and `agentmem workflows`.

run.py      `agentmem run`: the file, the stream of events through lost connections, how it ends
view.py     events as lines; pure
runs.py     `agentmem workflows`: the runs that there are and were
"""
