"""`agentmem top`: what store, worker and gateway do, live.

command.py      the command: the view on a terminal, one reading elsewhere, JSON for machines
watching.py     readings at regular times
sources.py      a reading: the three metrics pages, and what the gateway tells of models and agents
reading.py      what a reading holds
page.py         one metrics page, parsed
names.py        the metrics that are read
interval.py     what happened between two pages of a process: increases, rates, quantiles
quantiles.py    quantiles of a histogram
history.py      readings one after the other: what is compared with what, restarts
figures.py      the figures, as --json writes them and --schema describes them
concluding.py   figures from the history; of_processes.py, of_models.py and of_storage.py for their parts
sections.py     figures as tables and lines
amounts.py      numbers as the view writes them
columns.py      a table that leaves out columns where they do not fit
screen.py       sections on a screen of a width and a height
terminal.py     keys and signals

Only command.py, watching.py, sources.py and terminal.py do I/O; the rest are pure functions, each of what the
one before made.
"""
