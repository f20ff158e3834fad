"""Workflow files. Where to read:

schema.py        what a file may say, as pydantic models; its JSON Schema is made from them
source.py        YAML as data that knows its lines
templates.py     `${…}` in texts: what they name, and filling them in
variables.py     the file's variables: what is wrong with them, and their final texts
checks.py        what no schema can say: names that are there, memories and turns; and all of the following
extent.py        how many turns, listenings and notes a run has at most
phase_checks.py  one phase: who takes part, and whether it can take place in its topology
text_checks.py   what texts may name, and whether all who read them may know it
problem.py       what checks find, before it has a line
mistakes.py      what is wrong with a file, with its lines, as one error
load.py          all of it: a file's text as a Definition, or every mistake in it with its line
"""
