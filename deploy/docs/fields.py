"""The tables of request fields: what each dialect's schemas take, and what is refused, with advice."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from deploy.docs.tables import code, table
from gateway.api.chat import ChatRequest
from gateway.api.completions import CompletionRequest
from gateway.api.fields import REFUSED
from gateway.api.messages_schema import MessagesRequest
from gateway.api.responses_schema import ResponseRequest
from gateway.api.validation import Json

ENDPOINTS: Final[Mapping[str, type[BaseModel]]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/v1/messages": MessagesRequest,
}


def page() -> str:
    parts = ["## Honoured\n"]
    for path, model in ENDPOINTS.items():
        schema = model.model_json_schema(by_alias=True)
        parts += [f"### {path}\n", _table(schema, schema.get("$defs", {}))]
    refused = ((code(name), advice) for name, advice in sorted(REFUSED.items()))
    parts += ["## Refused with advice\n", table(("field", "instead"), refused)]
    return "\n".join(parts)


def _table(schema: Json, definitions: Json) -> str:
    said: dict[str, dict[str, None]] = {}
    for path, each in _rows("", schema, definitions, ()):
        said.setdefault(path, {})[each] = None
    return table(("field", "takes"), ((code(path), ", ".join(filter(None, each))) for path, each in said.items()))


def _rows(place: str, schema: Json, definitions: Json, within: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield paths of fields, and what each takes. An object within itself is not followed."""
    for name, field in schema.get("properties", {}).items():
        path = f"{place}{name}"
        yield path, _takes(field, definitions)
        for inner, suffix in _objects(field, definitions):
            title = inner.get("title", "")
            if title in within:
                continue
            yield from _rows(f"{path}{suffix}.", inner, definitions, (*within, title))


def _objects(field: Json, definitions: Json, suffix: str = "") -> Iterator[tuple[Json, str]]:
    """Yield the objects that a field may hold, and their suffix: "[]" in a list."""
    if "$ref" in field:
        yield from _objects(definitions[field["$ref"].rpartition("/")[2]], definitions, suffix)
    elif "properties" in field:
        yield field, suffix
    for group in ("anyOf", "oneOf"):
        for each in field.get(group, ()):
            yield from _objects(each, definitions, suffix)
    if "items" in field:
        yield from _objects(field["items"], definitions, f"{suffix}[]")


def _takes(field: Json, definitions: Json) -> str:
    kinds = dict.fromkeys(filter(None, _kinds(field, definitions)))
    said = ", ".join(kinds)
    about = field.get("description") or next(
        (each["description"] for each in field.get("anyOf", ()) if "description" in each and "$ref" not in each), ""
    )
    return f"{said}; {about}" if about else said


def _kinds(field: Json, definitions: Json) -> Iterator[str]:
    if "$ref" in field:
        yield from _kinds(definitions[field["$ref"].rpartition("/")[2]], definitions)
        return
    groups = [each for group in ("anyOf", "oneOf") for each in field.get(group, ())]
    for each in groups:
        yield from _kinds(each, definitions)
    if "const" in field:
        yield _value(field["const"])
    elif "enum" in field:
        yield " ".join(map(_value, field["enum"]))
    elif field.get("type") == "array":
        inner = dict.fromkeys(_kinds(field.get("items", {}), definitions))
        yield f"list of {' or '.join(inner)}" if inner else "list"
    elif field.get("type") not in (None, "null") and not groups:
        yield str(field["type"])


def _value(value: Any) -> str:
    return code(str(value).lower() if isinstance(value, bool) else value)
