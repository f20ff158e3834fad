"""`agentmem bench`: this machine and a model in a minute, as a table to share; by name a checkout's benchmarks.

command.py       the command
measuring.py     turns that are cold, warm and hot, and tokens per second
report.py        the figures as JSON, and as Markdown
completions.py   streamed chat completions of any server by their client's clock
machine/         `agentmem bench machine`
"""
