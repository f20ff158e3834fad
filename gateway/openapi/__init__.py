"""The OpenAPI document of the HTTP door, made of its routes, its schemas and one table.

operations.py  the table: what each route does. A route without a line in it has no place in the document
answers.py     JSON Schemas of answers that no model describes, and of errors
document.py    the document
"""
