"""REST for agents: the agents' half of the contract as JSON over HTTP, transcoded by its descriptors.

endpoints.py    the table: method, path, RPC, and which fields come from path and query
examples.py     a body for each, for the OpenAPI document
parameters.py   path and query into the fields of a request
schema.py       pydantic models of the contract's messages
transcoding.py  messages to JSON and back
errors.py       how REST tells of errors
turns.py        Generate: a body as an exchange, and its answer
routes.py       the endpoints as routes: unary calls, turns, files
files.py        an agent's file, streamed in and out
"""
