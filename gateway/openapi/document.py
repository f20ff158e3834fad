"""The OpenAPI document."""

import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.routing import BaseRoute, Route

from gateway.exchange import Json
from gateway.http.probes import OPEN
from gateway.http.turns import TurnEndpoint
from gateway.openapi.answers import ANTHROPIC_ERROR, NAMED_EVENT, OPENAI_ERROR
from gateway.openapi.operations import (
    EVENTS,
    FILE,
    IDEMPOTENCY_KEY,
    JSON,
    OPERATIONS,
    READ_ERRORS,
    WRITE_ERRORS,
    Operation,
)
from gateway.rest.endpoints import ENDPOINTS, Endpoint, Parameter, field_of
from gateway.rest.examples import EXAMPLES
from gateway.rest.schema import message_model
from gateway.rest.turns import model_of_answer, model_of_body

_REF: Final = "#/components/schemas/{model}"
_ERRORS: Final = {"openai": "Error", "anthropic": "AnthropicError"}
_RETRIED: Final = (429, 503, 529)


def document(routes: Iterable[BaseRoute]) -> Json:
    """The document of `routes`. KeyError for a route that `OPERATIONS` does not know."""
    found = list(_operations(routes))
    refs, schemas = _schemas(operation for _, _, operation in found)
    schemas |= {"Error": OPENAI_ERROR, "AnthropicError": ANTHROPIC_ERROR}
    paths: dict[str, Json] = {}
    for method, path, operation in found:
        paths.setdefault(path, {})[method.lower()] = _written(path, operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agentmem",
            "version": version("agentmem"),
            "summary": "Persistent memory for LLM agents: the HTTP door",
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


def served(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str, Route]]:
    """Method, path as OpenAPI writes it, and route of all that is served; HEAD goes without saying."""
    for route in routes:
        if isinstance(route, Route):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield method, re.sub(r"{(\w+):\w+}", r"{\1}", route.path), route


def _operations(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str, Operation]]:
    rest = {(endpoint.method, endpoint.path): endpoint for endpoint in ENDPOINTS}
    for method, path, route in served(routes):
        if (method, path) in rest:
            yield method, path, _rest(rest[method, path])
            continue
        operation = OPERATIONS[method, path]
        if isinstance(route.endpoint, TurnEndpoint):
            operation = operation._replace(body=route.endpoint.schema)
        yield method, path, operation


def _rest(endpoint: Endpoint) -> Operation:
    answers: dict[str, Any]
    body: type[BaseModel] | str | None = None
    if endpoint.rpc.name == "Generate":
        answers = {JSON: model_of_answer(), EVENTS: NAMED_EVENT}
    elif endpoint.rpc.server_streaming:
        answers = {FILE: {}}
    else:
        answers = {JSON: message_model(endpoint.rpc.output_type)}
    if endpoint.has_body:
        body = model_of_body(endpoint)
    elif endpoint.rpc.client_streaming:
        body = FILE
    return Operation(
        endpoint.summary,
        "Agents",
        answers,
        body,
        EXAMPLES.get(endpoint.rpc.name),
        tuple(_query(endpoint, parameter) for parameter in endpoint.query)
        + ((IDEMPOTENCY_KEY,) if endpoint.is_turn else ()),
        READ_ERRORS if body is None and endpoint.method == "GET" else WRITE_ERRORS,
    )


def _query(endpoint: Endpoint, parameter: Parameter) -> Json:
    kind = field_of(endpoint.rpc, parameter.field).type if parameter.field else FieldDescriptor.TYPE_BOOL
    schema: Json = {"type": "string"}
    if kind == FieldDescriptor.TYPE_BOOL:
        schema = {"type": "boolean"}
    elif kind == FieldDescriptor.TYPE_INT32:
        schema = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
    elif parameter.field != "page_token":
        schema |= {"minLength": 1, "maxLength": 256}
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.what,
        "schema": schema,
    }


def _schemas(operations: Iterable[Operation]) -> tuple[Mapping[Any, Json], Json]:
    """References to the models' schemas, and the schemas."""
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
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1, "maxLength": 256}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    content = {
        media: {"schema": refs[answer, "serialization"] if isinstance(answer, type) else answer}
        for media, answer in operation.answers.items()
    }
    written: Json = {
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*in_path, *operation.parameters],
        "responses": {"200": {"description": "OK", "content": content}, **_failures(operation)},
    }
    if operation.body is not None:
        written["requestBody"] = {"required": True, "content": _body(operation, refs)}
    if path in OPEN:
        written["security"] = []
    return written


def _body(operation: Operation, refs: Mapping[Any, Json]) -> Json:
    if isinstance(operation.body, str):
        return {operation.body: {"schema": {}}}
    content: Json = {"schema": refs[operation.body, "validation"]}
    if operation.example is not None:
        content["example"] = operation.example
    return {JSON: content}


def _failures(operation: Operation) -> Json:
    shape = {"$ref": _REF.format(model=_ERRORS[operation.dialect])}
    failures: Json = {}
    for status in sorted({*operation.errors, *operation.further}):
        schema = operation.further.get(status, shape)
        failures[str(status)] = {"description": _phrase(status), "content": {JSON: {"schema": schema}}}
        if status in _RETRIED:
            what = {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}
            failures[str(status)]["headers"] = {"Retry-After": what}
    return failures


def _phrase(status: int) -> str:
    if status == 499:
        return "The turn was aborted"
    return "Overloaded" if status == 529 else HTTPStatus(status).phrase
