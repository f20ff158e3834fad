"""`response_format` of a chat request: what its answer's text has to be."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_ANY_OBJECT = '{"type": "object"}'


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


def _well_formed(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("must be well-formed Unicode (it has a lone surrogate)") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return value


class TextFormat(_Strict):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(_Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(_Strict):
    """A JSON Schema. The text fits it whether `strict` or not; name and description do not reach the model."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: Annotated[dict[str, Any], Field(alias="schema"), AfterValidator(_well_formed)]
    strict: bool | None = None


class JsonSchemaFormat(_Strict):
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
