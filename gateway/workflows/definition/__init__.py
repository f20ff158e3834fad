"""Workflow files. Where to read:

schema.py      what a file may say, as pydantic models; its JSON Schema is made from them
source.py      YAML as data that knows its lines
templates.py   `${…}` in texts: what they name, and filling them in
checks.py      what no schema can say: names that are there, cycles, who may know what
load.py        all of it: a file's text as a Definition, or every mistake in it with its line
"""
