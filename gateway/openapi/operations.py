"""What each route of the HTTP door does, for the OpenAPI document. A new route gets one line here.

REST's lines come from `gateway.rest.endpoints`, and the schema of a turn's body from its TurnEndpoint.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel

from gateway.anthropic.messages_schema import CountTokensRequest
from gateway.exchange import Json
from gateway.http.probes import ALIVE, METRICS, READY
from gateway.openapi.answers import ANY, CHAT_COMPLETION, EVENT, MODEL, MODELS, STATUS, TOKENS, UNREADY

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
FILE: Final = "application/octet-stream"

_LARGE_HEADERS: Final = 431
"""The one answer of the door's own that even a probe may get."""

DOOR_ERRORS: Final = (401, 403, 421, 429, _LARGE_HEADERS, 503)
"""What the door answers before it looks at what is asked for."""

READ_ERRORS: Final = (*DOOR_ERRORS, 400, 404, 422, 499, 500, 504)
"""What any call to the worker may end with."""

WRITE_ERRORS: Final = (*READ_ERRORS, 408, 409, 413, 415)
"""What a call with a body may end with besides."""


class Operation(NamedTuple):
    """One route with one method. `answers` are the schemas of status 200 by media type.

    `body` is the model or the media type of what is sent, `example` one of it; `errors` are the statuses of errors, in
    the shape of `dialect`; `further` are responses with other statuses.
    """

    summary: str
    tag: str
    answers: Mapping[str, Json | type[BaseModel]]
    body: type[BaseModel] | str | None = None
    example: Json | None = None
    parameters: tuple[Json, ...] = ()
    errors: tuple[int, ...] = READ_ERRORS
    dialect: Literal["openai", "anthropic"] = "openai"
    further: Mapping[int, Json] = {}


def turn(
    summary: str,
    tag: str,
    example: Json,
    answer: Json | type[BaseModel] = ANY,
    *,
    dialect: Literal["openai", "anthropic"] = "openai",
) -> Operation:
    """A route that runs turns: JSON, or events where `stream` asks for them."""
    answers: dict[str, Json | type[BaseModel]] = {JSON: answer, EVENTS: EVENT}
    parameters = (AGENT, MEMORY, IDEMPOTENCY_KEY, TEMPLATE_TIME, HISTORY)
    statuses = (*WRITE_ERRORS, 529) if dialect == "anthropic" else WRITE_ERRORS
    return Operation(summary, tag, answers, example=example, parameters=parameters, errors=statuses, dialect=dialect)


def _header(name: str, what: str, most: int) -> Json:
    schema = {"type": "string", "minLength": 1, "maxLength": most, "pattern": "^[!-~]+$"}
    return {"name": name, "in": "header", "description": what, "schema": schema}


AGENT: Final = _header("X-Agent-ID", "The agent whose turn it is, percent-encoded; else it is found by content.", 768)
MEMORY: Final[Json] = {
    "name": "X-Agent-Memory",
    "in": "header",
    "description": "How the input relates to the memory of the agent that X-Agent-ID names; else the input decides.",
    "schema": {"enum": ["append", "replace", "refuse"]},
}
IDEMPOTENCY_KEY: Final = _header(
    "Idempotency-Key", "Names the turn: a retry with the same key and body is answered with the turn itself.", 128
)
HISTORY: Final[Json] = {
    "name": "X-Agent-History",
    "in": "header",
    "description": "How what the agent has had of a chat is taken: as it remembers it, with the reasoning that a "
    "template leaves out of earlier turns (memory, the default), or as the template renders it.",
    "schema": {"enum": ["memory", "template"]},
}
TEMPLATE_TIME: Final = _header(
    "X-Agent-Template-Time",
    "The moment, in ISO 8601, that the chat template sees as the present, and the agent's from then on.",
    64,
)

_HELLO: Final = [{"role": "user", "content": "The colour of the boat is green."}]

OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/chat/completions"): turn(
        "Complete a chat", "OpenAI", {"model": "demo", "messages": _HELLO}, CHAT_COMPLETION
    ),
    ("POST", "/v1/completions"): turn("Complete a text", "OpenAI", {"model": "demo", "prompt": "The boat is"}),
    ("POST", "/v1/responses"): turn("Answer", "OpenAI", {"model": "demo", "input": "The colour of the boat is green."}),
    **{
        (method, "/v1/responses/{id}"): Operation(
            "Not served: says what to do", "OpenAI", {}, errors=(*DOOR_ERRORS, 404)
        )
        for method in ("GET", "POST", "DELETE")
    },
    ("POST", "/v1/messages"): turn(
        "Answer messages", "Anthropic", {"model": "demo", "max_tokens": 64, "messages": _HELLO}, dialect="anthropic"
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count the tokens of messages",
        "Anthropic",
        {JSON: TOKENS},
        body=CountTokensRequest,
        example={"model": "demo", "messages": _HELLO},
        errors=(*WRITE_ERRORS, 529),
        dialect="anthropic",
    ),
    ("GET", "/v1/models"): Operation("List models", "OpenAI", {JSON: MODELS}),
    ("GET", "/v1/models/{id}"): Operation("Describe a model", "OpenAI", {JSON: MODEL}),
    ("GET", ALIVE): Operation("Whether the gateway lives", "Operations", {JSON: STATUS}, errors=(_LARGE_HEADERS,)),
    ("GET", READY): Operation(
        "Whether a turn could run", "Operations", {JSON: STATUS}, errors=(_LARGE_HEADERS,), further={503: UNREADY}
    ),
    ("GET", METRICS): Operation("Prometheus' page", "Operations", {TEXT: {"type": "string"}}, errors=DOOR_ERRORS),
    ("GET", "/openapi.json"): Operation("This document", "Operations", {JSON: ANY}, errors=DOOR_ERRORS),
}
"""All routes but REST's."""
