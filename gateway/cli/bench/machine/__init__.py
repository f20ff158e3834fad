"""`agentmem bench machine`: this machine and a model in ten minutes, beside mlx-lm, as a page and a JSON to send.

command.py     the command, its signals and its folder
subject.py     the model, as both servers read it
course.py      part after part, with an error in one as its result
plan.py        the parts, and how much fits into their time; pure
servers.py     `agentmem up` and mlx_lm.server as children
children.py    a module as a child that leaves no process
scenarios.py   the turns of each part
facts.py       chip, system, power, versions
privacy.py     takes names and paths out
page.py        the page; pure
files.py       both files, written again after each part
"""
