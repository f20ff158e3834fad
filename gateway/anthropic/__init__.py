"""Anthropic's dialect as pure translation: JSON in, contract messages out, and back. No I/O.

messages_schema.py     what /v1/messages and /v1/messages/count_tokens may hold
conversation.py        system, messages and tools as the contract's messages
messages_request.py    a request as a turn, or as a question for the number of its tokens
messages_response.py   the events of a turn as a message, or as a stream of one
models.py              models as /v1/models tells of them
errors.py              our errors in Anthropic's shape
"""
