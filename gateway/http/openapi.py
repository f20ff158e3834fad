"""The OpenAPI document: REST exactly, and the dialects by their requests."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from agentmem.distribution import version
from gateway.api.chat import ChatRequest
from gateway.api.completions import CompletionRequest
from gateway.api.endpoints import Endpoint, Kind
from gateway.api.messages_schema import CountTokensRequest, MessagesRequest
from gateway.api.responses_schema import ResponseRequest
from gateway.api.rest import ENDPOINTS, model_of_answer, model_of_body, model_of_query
from gateway.api.transcoding import message_model
from gateway.api.validation import Json
from gateway.http.middleware import PROBES, is_keyless
from gateway.http.requests import TurnHeaders, TurnName
from gateway.rings import is_installed

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
FILE: Final = "application/octet-stream"


class Operation(NamedTuple):
    """`answers`: schemas of status 200 by media type; `body`: the request's model or media type."""

    summary: str
    tag: str
    answers: Mapping[str, Json | type[BaseModel]] = {JSON: {"type": "object"}}
    body: type[BaseModel] | str | None = None
    example: Json | None = None
    parameters: tuple[Json, ...] = ()


_NAME: Final[Json] = {"type": "string", "minLength": 1, "maxLength": 256}


def _parameters(where: str, model: type[BaseModel]) -> tuple[Json, ...]:
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


_TEXT: Final[Json] = {"type": "string"}
_EVENT: Final[Json] = {"type": "object", "properties": {"event": _TEXT, "data": _TEXT}, "required": ["data"]}


def _turn(summary: str, tag: str, body: type[BaseModel], example: Json) -> Operation:
    """Events are sent where `stream` asks for them."""
    answers: Mapping[str, Json] = {JSON: {"type": "object"}, EVENTS: _EVENT}
    return Operation(summary, tag, answers, body, example, _parameters("header", TurnHeaders))


_CHAT: Final = {"model": "demo", "messages": [{"role": "user", "content": "The colour of the boat is green."}]}

OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/chat/completions"): _turn("Complete a chat", "OpenAI", ChatRequest, _CHAT),
    ("POST", "/v1/completions"): _turn(
        "Complete a text", "OpenAI", CompletionRequest, {"model": "demo", "prompt": "The boat is"}
    ),
    ("POST", "/v1/responses"): _turn(
        "Answer", "OpenAI", ResponseRequest, {"model": "demo", "input": "Where is the boat?"}
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "Read a response that is kept; with /input_items after the id, what it brought to the memory", "OpenAI"
    ),
    ("DELETE", "/v1/responses/{id}"): Operation("Delete the last response of a conversation", "OpenAI"),
    ("POST", "/v1/messages"): _turn("Answer messages", "Anthropic", MessagesRequest, {**_CHAT, "max_tokens": 64}),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count the tokens of messages", "Anthropic", body=CountTokensRequest, example=_CHAT
    ),
    ("GET", "/v1/models"): Operation("List models", "OpenAI"),
    ("GET", "/v1/models/{id}"): Operation("Describe a model", "OpenAI"),
    ("GET", "/v1/overview"): Operation(
        "What the processes count, for admins: requests, tokens by tier, times, pool, disk, evictions; rates and"
        " percentiles are since the reading before, which is at least a second ago and shared by all who ask",
        "Operations",
    ),
    ("GET", "/v1/overview/history"): Operation(
        "What the page's charts show, for admins: a point for each 5 seconds of the last 15 minutes", "Operations"
    ),
    **{
        ("GET", path): Operation("Whether the gateway lives, or could run a turn", "Operations")
        for path in sorted(PROBES)
    },
    **{
        ("GET", path): Operation("List the nodes of the cluster, for admins; 404 on a single machine", "Operations")
        for path in ("/v1/cluster",)
        if is_installed("gateway.cluster")
    },
}
"""All routes but REST's, the page's, and those that describe the server."""


_REF: Final = "#/components/schemas/{model}"


def _error(fields: Json, **around: Json) -> Json:
    error = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "object", "properties": {**around, "error": error}, "required": [*around, "error"]}


_MAYBE: Final[Json] = {"type": ["string", "null"]}
_ERRORS: Final = {
    "Error": _error({"message": _TEXT, "type": _TEXT, "param": _MAYBE, "code": _MAYBE}),
    "AnthropicError": _error({"type": _TEXT, "message": _TEXT}, type=_TEXT),
}


@cache
def document() -> Json:
    operations = {**OPERATIONS, **{(endpoint.method, endpoint.path): _rest(endpoint) for endpoint in ENDPOINTS}}
    refs, schemas = _schemas(operations.values())
    schemas |= _ERRORS
    paths: dict[str, Json] = {}
    for (method, path), operation in operations.items():
        paths.setdefault(path, {})[method.lower()] = _written(path, operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agentmem",
            "version": version(),
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
            answers = {JSON: model_of_answer(), EVENTS: {**_EVENT, "required": ["event", "data"]}}
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
    )


def _schemas(operations: Iterable[Operation]) -> tuple[Mapping[Any, Json], Json]:
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
        if media == EVENTS and isinstance(answer, type):
            data = {**_TEXT, "contentMediaType": JSON, "contentSchema": schema}
            schema = {**_EVENT, "properties": {"event": _TEXT, "data": data}}
        content[media] = {"schema": schema}
    error = {"$ref": _REF.format(model="AnthropicError" if operation.tag == "Anthropic" else "Error")}
    written: Json = {
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*in_path, *operation.parameters],
        "responses": {"200": {"description": "OK", "content": content}},
    }
    if path not in PROBES:
        written["responses"]["default"] = {"description": "An error", "content": {JSON: {"schema": error}}}
    if isinstance(operation.body, str):
        written["requestBody"] = {"required": True, "content": {operation.body: {"schema": {}}}}
    elif operation.body is not None:
        body = {"schema": refs[operation.body, "validation"], "example": operation.example}
        written["requestBody"] = {"required": True, "content": {JSON: body}}
    if is_keyless(path):
        written["security"] = []
    return written
