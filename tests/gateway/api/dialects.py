"""The dialects: a small body of each, and what its requests become."""

import json
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2
from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.completions import CompletionRequest, completion_exchange
from gateway.api.exchange import Exchange, Incoming
from gateway.api.messages import messages_exchange
from gateway.api.messages_schema import MessagesRequest
from gateway.api.responses import response_exchange
from gateway.api.responses_schema import ResponseRequest
from gateway.api.validation import parse_body

INCOMING = Incoming("ns", "", "0f" * 16, 7)
USER = {"role": "user", "content": "hi"}


class Dialect(NamedTuple):
    path: str
    schema: type[BaseModel]
    translate: Any
    body: dict[str, Any]


DIALECTS = {
    "chat": Dialect("/v1/chat/completions", ChatRequest, chat_exchange, {"messages": [USER]}),
    "completions": Dialect("/v1/completions", CompletionRequest, completion_exchange, {"prompt": "hi"}),
    "responses": Dialect("/v1/responses", ResponseRequest, response_exchange, {"input": "hi"}),
    "messages": Dialect("/v1/messages", MessagesRequest, messages_exchange, {"max_tokens": 9, "messages": [USER]}),
}


def parse(dialect: str, **fields: Any) -> Any:
    _, schema, _, body = DIALECTS[dialect]
    return parse_body(json.dumps({"model": "m", **body, **fields}).encode(), schema)


def exchange(dialect: str, incoming: Incoming = INCOMING, **fields: Any) -> Exchange:
    made: Exchange = DIALECTS[dialect].translate(parse(dialect, **fields), incoming)
    return made


def turn(dialect: str, **fields: Any) -> inference_pb2.GenerateRequest:
    return exchange(dialect, **fields).turns[0]


def refusal(dialect: str, incoming: Incoming = INCOMING, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        exchange(dialect, incoming, **fields)
    return caught.value
