"""Workflow files. Where to read:

schema.py            what a file may say, as pydantic models; its JSON Schema is made from them
parser.py            a file's text as a Definition, or every mistake in it with its line
checks.py            what no schema can say: names that are there, phases that can take place, how much a run may do
templates.py         `${…}` in texts: what they name, and filling them in
template_checks.py   what texts may name, and whether all who read them may know it
"""
