"""`agentmem bench`: this machine and a model in a minute, as a table to share; by name a checkout's benchmarks.

command.py     the command
measuring.py   turns that are cold, warm and hot, and tokens per second
report.py      the figures as JSON, and as Markdown
"""
