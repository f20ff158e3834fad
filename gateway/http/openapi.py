"""The OpenAPI document: what each route does, with the schemas that requests are checked by.

A new route is one entry here. REST's operations come from `gateway.api.rest`.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from gateway.api import answer_schemas
from gateway.api.chat import ChatRequest
from gateway.api.completions import CompletionRequest
from gateway.api.endpoints import Endpoint, Kind
from gateway.api.messages_schema import CountTokensRequest, MessagesRequest
from gateway.api.responses_schema import ResponseRequest
from gateway.api.rest import ENDPOINTS, model_of_answer, model_of_body, model_of_query
from gateway.api.transcoding import message_model
from gateway.api.validation import Json
from gateway.http.middleware import ALIVE, HEALTH, METRICS, READY, ROOT, is_keyless
from gateway.http.requests import TurnHeaders, TurnName

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
HTML: Final = "text/html"
FILE: Final = "application/octet-stream"

GUARD_ERRORS: Final = (401, 403, 421, 429, 503)
"""What is answered before the endpoint."""

READ_ERRORS: Final = (*GUARD_ERRORS, 400, 404, 422, 499, 500, 504)
"""What any call to the worker may end with."""

WRITE_ERRORS: Final = (*READ_ERRORS, 408, 409, 413, 415)
"""What a call with a body may end with besides."""


class Operation(NamedTuple):
    """One route with one method. `answers` are the schemas of status 200 by media type.

    `body` is the model or the media type of what is sent, `example` one of it; `errors` are the statuses of errors, in
    the shape of `dialect`, but for those that `further` has a schema for.
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


_NAME: Final[Json] = {"type": "string", "minLength": 1, "maxLength": 256}


def _parameters(where: str, model: type[BaseModel]) -> tuple[Json, ...]:
    """Return the fields of `model` as parameters in the header or the query."""
    schema = model.model_json_schema()
    return tuple(
        {
            "name": name,
            "in": where,
            "required": name in schema.get("required", ()),
            "description": said["description"],
            "schema": {key: value for key, value in said.items() if key not in ("title", "description", "default")},
        }
        for name, said in schema["properties"].items()
    )


_TURN: Final = Operation(
    "",
    "OpenAI",
    {JSON: answer_schemas.ANY, EVENTS: answer_schemas.EVENT},
    parameters=_parameters("header", TurnHeaders),
    errors=WRITE_ERRORS,
)
"""A route that runs turns: JSON, or events where `stream` asks for them."""

_ANTHROPIC: Final[Any] = {"tag": "Anthropic", "dialect": "anthropic", "errors": (*WRITE_ERRORS, 529)}
_TEXT: Final = {"type": "string"}
_PAGE_ERRORS: Final = (421, 503)
_CHAT: Final = {"model": "demo", "messages": [{"role": "user", "content": "The colour of the boat is green."}]}

OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/chat/completions"): _TURN._replace(
        summary="Complete a chat",
        body=ChatRequest,
        example=_CHAT,
        answers={JSON: answer_schemas.CHAT_COMPLETION, EVENTS: answer_schemas.EVENT},
    ),
    ("POST", "/v1/completions"): _TURN._replace(
        summary="Complete a text",
        body=CompletionRequest,
        example={"model": "demo", "prompt": "The boat is"},
        answers={JSON: answer_schemas.COMPLETION, EVENTS: answer_schemas.EVENT},
    ),
    ("POST", "/v1/responses"): _TURN._replace(
        summary="Answer", body=ResponseRequest, example={"model": "demo", "input": "Where is the boat?"}
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "Read a response that is kept; with /input_items after the id, what it brought to the memory",
        "OpenAI",
        {JSON: answer_schemas.ANY},
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        "Delete the last response of a conversation", "OpenAI", {JSON: answer_schemas.ANY}
    ),
    ("POST", "/v1/responses/{id}"): Operation(
        "Not served: no response is in the background", "OpenAI", {}, errors=(*GUARD_ERRORS, 400, 404)
    ),
    ("POST", "/v1/messages"): _TURN._replace(
        summary="Answer messages",
        body=MessagesRequest,
        example={**_CHAT, "max_tokens": 64},
        answers={JSON: answer_schemas.MESSAGE, EVENTS: answer_schemas.EVENT},
        **_ANTHROPIC,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count the tokens of messages",
        answers={JSON: answer_schemas.TOKENS},
        body=CountTokensRequest,
        example=_CHAT,
        **_ANTHROPIC,
    ),
    ("GET", "/v1/models"): Operation("List models", "OpenAI", {JSON: answer_schemas.MODELS}),
    ("GET", "/v1/models/{id}"): Operation("Describe a model", "OpenAI", {JSON: answer_schemas.MODEL}),
    ("GET", "/v1/overview"): Operation(
        "What the processes count, for admins: requests, tokens by tier, times, pool, disk, evictions; rates and"
        " percentiles are since the reading before, which is at least a second ago and shared by all who ask",
        "Operations",
        {JSON: answer_schemas.OVERVIEW},
    ),
    ("GET", "/v1/cluster"): Operation(
        "List the nodes of the cluster, for admins; 404 on a single machine",
        "Operations",
        {JSON: answer_schemas.CLUSTER},
    ),
    ("GET", ALIVE): Operation("Whether the gateway lives", "Operations", {JSON: answer_schemas.STATUS}, errors=()),
    **{
        ("GET", path): Operation(
            "Whether a turn could run",
            "Operations",
            {JSON: answer_schemas.STATUS},
            errors=(),
            further={503: answer_schemas.UNREADY},
        )
        for path in (READY, HEALTH)
    },
    ("GET", ROOT): Operation(
        "What this is; a browser is sent to the page", "Operations", {JSON: answer_schemas.ANY}, errors=_PAGE_ERRORS
    ),
    ("GET", "/ui"): Operation("The page", "Page", {HTML: _TEXT}, errors=_PAGE_ERRORS),
    ("GET", "/ui/{file}"): Operation("A file of the page", "Page", {"*/*": {}}, errors=(404, *_PAGE_ERRORS)),
    ("GET", METRICS): Operation("Prometheus' page", "Operations", {TEXT: _TEXT}, errors=GUARD_ERRORS),
    ("GET", "/openapi.json"): Operation("This document", "Operations", {JSON: answer_schemas.ANY}, errors=GUARD_ERRORS),
}
"""All routes but REST's; tests compare them with those that are served."""


_REF: Final = "#/components/schemas/{model}"


@cache
def document() -> Json:
    """Return the document. The first time it takes a while."""
    operations = {**OPERATIONS, **{(endpoint.method, endpoint.path): _rest(endpoint) for endpoint in ENDPOINTS}}
    refs, schemas = _schemas(operations.values())
    schemas |= {"Error": answer_schemas.OPENAI_ERROR, "AnthropicError": answer_schemas.ANTHROPIC_ERROR}
    paths: dict[str, Json] = {}
    for (method, path), operation in operations.items():
        paths.setdefault(path, {})[method.lower()] = _written(path, operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agentmem",
            "version": version("agentmem"),
            "summary": "Persistent memory for LLM agents: the HTTP API",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {"apiKey": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Where the gateway asks for keys."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


_TAGS: Final = {"ModelService": "Models", "WorkflowService": "Workflows"}


def _rest(endpoint: Endpoint) -> Operation:
    message = message_model(endpoint.rpc.output_type)
    answers: Mapping[str, Json | type[BaseModel]] = {JSON: message}
    match endpoint.kind:
        case Kind.TURN:
            answers = {JSON: model_of_answer(), EVENTS: answer_schemas.NAMED_EVENT}
        case Kind.EVENTS:
            answers = {EVENTS: message}
        case Kind.FILE:
            answers = {FILE: {}}
    body = model_of_body(endpoint) if endpoint.has_body else FILE if endpoint.kind is Kind.UPLOAD else None
    return Operation(
        endpoint.summary,
        _TAGS.get(endpoint.rpc.containing_service.name, "Agents"),
        answers,
        body,
        endpoint.example,
        _parameters("query", model_of_query(endpoint)) + (_parameters("header", TurnName) if endpoint.is_named else ()),
        READ_ERRORS if body is None and endpoint.method == "GET" else WRITE_ERRORS,
    )


def _schemas(operations: Iterable[Operation]) -> tuple[Mapping[Any, Json], Json]:
    """Return references to the models' schemas, and the schemas."""
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {}
    for operation in operations:
        if isinstance(operation.body, type):
            wanted[operation.body, "validation"] = None
        for answer in operation.answers.values():
            if isinstance(answer, type):
                wanted[answer, "serialization"] = None
    refs, definitions = models_json_schema(list(wanted), ref_template=_REF)
    return refs, definitions["$defs"]


def _written(path: str, operation: Operation, refs: Mapping[Any, Json]) -> Json:
    in_path = [{"name": name, "in": "path", "required": True, "schema": _NAME} for name in re.findall(r"{(\w+)}", path)]
    content = {}
    for media, answer in operation.answers.items():
        schema = refs[answer, "serialization"] if isinstance(answer, type) else answer
        is_message = media == EVENTS and isinstance(answer, type)
        content[media] = {"schema": answer_schemas.event_of(schema) if is_message else schema}
    written: Json = {
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*in_path, *operation.parameters],
        "responses": {"200": {"description": "OK", "content": content}, **_failures(operation)},
    }
    if isinstance(operation.body, str):
        written["requestBody"] = {"required": True, "content": {operation.body: {"schema": {}}}}
    elif operation.body is not None:
        body = {"schema": refs[operation.body, "validation"], "example": operation.example}
        written["requestBody"] = {"required": True, "content": {JSON: body}}
    if is_keyless(path):
        written["security"] = []
    return written


_PHRASES: Final = {499: "The turn was aborted", 529: "Overloaded"}
_RETRY_AFTER: Final = {
    "Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}
}


def _failures(operation: Operation) -> Json:
    shape = {"$ref": _REF.format(model="AnthropicError" if operation.dialect == "anthropic" else "Error")}
    return {
        str(status): {
            "description": _PHRASES.get(status) or HTTPStatus(status).phrase,
            "content": {JSON: {"schema": operation.further.get(status, shape)}},
            **({"headers": _RETRY_AFTER} if status in (429, 503, 529) else {}),
        }
        for status in sorted({*operation.errors, *operation.further})
    }
