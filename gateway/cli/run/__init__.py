"""`agentmem run FILE`: a workflow, run and shown.

command.py     the command: its options, Ctrl-C, how it ends
source.py      the file and the variables, and what is wrong with them
following.py   the stream of events, through lost connections, each event once
state.py       a run as its events tell of it; pure
transcript.py  the lines of an event, for people
table.py       how each agent stands, as a table
view.py        a run while it goes on: live on a terminal, lines elsewhere, JSON for machines
"""
