"""`agentmem run FILE` and `agentmem workflows`.

run.py      `agentmem run`: the file, the stream of events through lost connections, how it ends
state.py    a run as its events tell of it, and what memory saved; pure
view.py     a run while it goes on: live on a terminal, lines elsewhere, JSON for machines
report.py   a run as report.html, which is the page's view of it
runs.py     `agentmem workflows`: the runs that there are and were
"""
