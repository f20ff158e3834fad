"""Workflow files. Where to read:

schema.py what a file may say, as pydantic models parser.py a file's text as a Definition, or its mistakes with their
lines checks.py what no schema can say templates.py `${…}` in texts template_checks.py what texts may name, and whether
all who read them may know it
"""
