"""`response_format` of a chat request: what its answer's text has to be."""

import json
from typing import Annotated, Literal

from pydantic import Field

from gateway.fields import JsonObject, Strict, Text

_ANY_OBJECT = '{"type": "object"}'


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON Schema. The text fits it whether `strict` or not; name and description do not reach the model."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    json_schema: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def schema_of(response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> str | None:
    """The JSON Schema that the text has to fit, as JSON with the properties in their order; None for any text."""
    match response_format:
        case JsonSchemaFormat(json_schema=named):
            return json.dumps(named.json_schema, ensure_ascii=False)
        case JsonObjectFormat():
            return _ANY_OBJECT
    return None
