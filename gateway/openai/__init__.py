"""OpenAI's dialect as pure translation: JSON in, contract messages out, and back. No I/O.

schema.py               how strictly requests are read, and the parameters of sampling
sampling.py             those in the contract's words
told.py                 what all endpoints tell of a turn: log-probabilities, usage
tool_choice.py          what requests say of the calls that the model may make
chat_schema.py          what /v1/chat/completions may hold
response_format.py      what the text of its answer has to be
chat_request.py         both as turns
chat_response.py        the events of turns as a completion, or as chunks
completion_schema.py    what /v1/completions may hold
completion_request.py   that as turns
completion_response.py  the events of turns as a completion, or as chunks
response_schema.py      what /v1/responses may hold
response_request.py     that as a turn
response_ids.py         the ids that previous_response_id goes by
response_output.py      the items of a response, and the events that tell of them
response_answer.py      the events of a turn as a response, or as the stream that makes it
models.py               models as /v1/models tells of them
errors.py               our errors in OpenAI's shape
"""
