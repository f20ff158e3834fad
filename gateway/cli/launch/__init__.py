"""`agentmem launch`: a coding agent on this server, for one run.

command.py    the command
clients.py    what is known of each client: its program, its settings
running.py    the client as a child at the terminal
gained.py     what memory gave
"""
