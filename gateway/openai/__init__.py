"""OpenAI's dialect as pure translation: JSON in, contract messages out, and back. No I/O.

json_body.py       bytes to a JSON object, or why not
chat_schema.py     what /v1/chat/completions may hold
response_format.py what its answer's text has to be
chat_request.py    both as a GenerateRequest
chat_response.py   the events of a turn as a completion, or as chunks
models.py          models as /v1/models tells of them
errors.py          our errors in OpenAI's shape
"""
