"""The HTTP API, from the gateway's OpenAPI document."""

import json
from collections.abc import Iterator
from typing import Any, Final

from deploy.docs.contract import names as types_of_the_contract
from deploy.docs.tables import code, table
from gateway.http.openapi import document

_SCHEMAS: Final = "#/components/schemas/"
_DIALECTS: Final = ("OpenAI", "Anthropic")
"""Tags whose bodies are described field by field; those of REST are the contract's messages."""


def page() -> str:
    """Return where the document is, a section for each route, by tag, and the request bodies of the dialects."""
    described = document()
    by_tag: dict[str, list[str]] = {}
    bodies: dict[str, None] = {}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["Server"])[0]
            by_tag.setdefault(tag, []).append(_operation(method.upper(), path, operation))
            if tag in _DIALECTS:
                bodies |= dict.fromkeys(_names(operation.get("requestBody", {})))
    schemas = described["components"]["schemas"]
    parts = [f"## {tag}\n\n" + "\n".join(sections) for tag, sections in by_tag.items()]
    copy = "[The document](openapi.json) of this version.\n"
    return "\n".join([copy, *parts, "## Request bodies\n", *_bodies(list(bodies), schemas)])


def serialized() -> str:
    """Return the document as JSON text."""
    return json.dumps(document(), indent=1)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = [
        (code(each["name"]), each["in"], "yes" if each.get("required") else "", each.get("description", ""))
        for each in operation.get("parameters", [])
        if each["in"] != "path"
    ]
    parts = [f"### {method} {path}\n", f"{operation['summary']}. {operation.get('description', '')}\n"]
    is_rest = operation.get("tags") not in [[tag] for tag in _DIALECTS]
    for label, described in (("Body", operation.get("requestBody")), ("Answer", operation["responses"].get("200"))):
        if names := list(dict.fromkeys(_names(described))):
            parts.append(f"{label}: {', '.join(_linked(name, is_rest) for name in names)}.\n")
    parts.append(table(("parameter", "in", "required", "meaning"), parameters))
    codes = sorted(status for status in operation["responses"] if status >= "4")
    if codes:
        parts.append(f"Errors: {', '.join(codes)}.\n")
    return "\n".join(part for part in parts if part)


def _bodies(names: list[str], schemas: dict[str, Any]) -> Iterator[str]:
    """Yield a section for each of `names`, and for what they refer to."""
    for name in names:  # grows meanwhile
        schema = schemas[name]
        names.extend(inner for inner in dict.fromkeys(_names(schema)) if inner not in names)
        required = schema.get("required", ())
        rows = [
            (code(field), _type(value), "yes" if field in required else "", value.get("description", ""))
            for field, value in schema.get("properties", {}).items()
        ]
        about = schema.get("description", "").partition("\n\n")[0]
        yield f"### {_title(name)} {{ #{_anchor(name)} }}\n\n{about}\n\n" + table(
            ("field", "type", "required", "meaning"), rows
        )


def _type(schema: dict[str, Any]) -> str:
    """Return a schema in a few words, with links to the bodies that it refers to."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SCHEMAS)
        return f"[{_title(name)}](#{_anchor(name)})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = dict.fromkeys(_type(each) for each in schema[several] if each.get("type") != "null")
            return " or ".join(kinds)
    if "enum" in schema or "const" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return kind if isinstance(kind, str) else " or ".join(each for each in kind if each != "null")


def _names(found: Any) -> Iterator[str]:
    """Yield the names of all schemas that `found` refers to."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key == "$ref":
                yield value.removeprefix(_SCHEMAS)
            else:
                yield from _names(value)
    elif isinstance(found, list):
        for value in found:
            yield from _names(value)


def _linked(name: str, is_rest: bool) -> str:
    """Return a link to where a body is described: of REST in the contract, if it is one of its messages."""
    if not is_rest:
        return f"[{_title(name)}](#{_anchor(name)})"
    is_message = name in types_of_the_contract()
    return f"[{name}](grpc.md#{name.lower()})" if is_message else code(_title(name))


def _title(name: str) -> str:
    """Return a schema's name without the module and direction that pydantic adds to make it unique."""
    return name.rpartition("__")[2].removesuffix("-Input").removesuffix("-Output").lstrip("_")


def _anchor(name: str) -> str:
    return f"body-{name.lower().replace('_', '-')}"
