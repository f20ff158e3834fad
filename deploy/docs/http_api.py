"""The HTTP API, from the gateway's OpenAPI document."""

import json
import re
from typing import Any, Final

from deploy.docs.tables import code, table
from gateway.http.openapi import document

_SCHEMA: Final = re.compile(r'"#/components/schemas/(?:\w+__)?([\w-]+)"')
_DIALECTS: Final = ("OpenAI", "Anthropic")
"""Tags whose bodies are on the page of fields; those of REST are the contract's messages."""


def page() -> str:
    """Return where the document is, and a section for each route, by tag."""
    by_tag: dict[str, list[str]] = {}
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            tag = operation["tags"][0]
            by_tag.setdefault(tag, []).append(_operation(f"{method.upper()} {path}", tag, operation))
    parts = [f"## {tag}\n\n" + "\n".join(sections) for tag, sections in by_tag.items()]
    return "\n".join(["[The document](openapi.json) of this version.\n", *parts])


def serialized() -> str:
    return json.dumps(document(), indent=1)


def _operation(route: str, tag: str, operation: dict[str, Any]) -> str:
    parts = [f"### {route}\n", f"{operation['summary']}. {operation.get('description', '')}\n"]
    if tag not in _DIALECTS:
        for label, described in (("Body", operation.get("requestBody")), ("Answer", operation["responses"].get("200"))):
            if names := dict.fromkeys(_SCHEMA.findall(json.dumps(described))):
                parts.append(f"{label}: {', '.join(map(code, names))}.\n")
    parameters = [
        (code(each["name"]), each["in"], "yes" if each.get("required") else "", each.get("description", ""))
        for each in operation.get("parameters", [])
        if each["in"] != "path"
    ]
    parts.append(table(("parameter", "in", "required", "meaning"), parameters))
    return "\n".join(filter(None, parts))
