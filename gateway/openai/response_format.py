"""What an answer's text has to be: `response_format` of a chat request, `text.format` of one for a response."""

import json
from typing import Annotated, Literal

from pydantic import Field

from gateway.fields import JsonObject, Strict, Text
from gateway.openai.schema import Name

_ANY_OBJECT = '{"type": "object"}'


class AnyText(Strict):
    """Any text."""

    type: Literal["text"]


class AnyJsonObject(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON Schema. The text fits it whether `strict` or not; name and description do not reach the model."""

    name: Name
    description: Text | None = None
    json_schema: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None


class ChatJsonSchema(Strict):
    """JSON that fits a schema, as chat requests say it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class ResponseJsonSchema(NamedSchema):
    """JSON that fits a schema, as requests for a response say it."""

    type: Literal["json_schema"]


ResponseFormat = Annotated[AnyText | AnyJsonObject | ChatJsonSchema, Field(discriminator="type")]
TextFormat = Annotated[AnyText | AnyJsonObject | ResponseJsonSchema, Field(discriminator="type")]


def schema_of(wanted: AnyText | AnyJsonObject | ChatJsonSchema | ResponseJsonSchema | None) -> str | None:
    """The JSON Schema that the text has to fit, as JSON with the properties in their order; None for any text."""
    match wanted:
        case ChatJsonSchema(json_schema=NamedSchema(json_schema=schema)) | ResponseJsonSchema(json_schema=schema):
            return json.dumps(schema, ensure_ascii=False)
        case AnyJsonObject():
            return _ANY_OBJECT
    return None
