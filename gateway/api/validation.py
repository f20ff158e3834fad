"""Bodies of requests as JSON objects, and the kinds of their fields."""

import json
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema

from agentmem import jsonsize, jsontext
from agentmem.errors import InvalidArgument
from agentmem.jsontext import MAX_DEPTH, shallow
from agentmem.limits import SAMPLING
from agentmem.validation import MAX_STOP_BYTES, check_text
from gateway.api.complaints import complaints, deepest, dotted, shown_name
from gateway.api.fields import IDLE

_Model = TypeVar("_Model", bound=BaseModel)

Json = dict[str, Any]
UINT32 = 2**32 - 1
MAX_TOOL_NAME = 128

_TOP_1 = 1e-6
"""A top_p in which nothing fits but the most likely token."""


def _stop_at_first(schema: Any) -> None:
    """Have lists fail at their first bad element, wherever they are in a core schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _stop_at_first(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _stop_at_first(part)


def within(parameter: str, high: float | None = None) -> Any:
    """Return the bounds of a sampling parameter as pydantic takes them. A dialect may have another upper one."""
    bounds = SAMPLING[parameter]
    low, above = (None, bounds.low) if bounds.open else (bounds.low, None)
    return Field(ge=low, gt=above, le=bounds.high if high is None else high)


class Strict(BaseModel):
    """Base of all that is read from a request: no conversions, no unknown fields, and nothing of it in errors.

    A list is read up to its first bad element, since one error is told of a body, and each takes 2 KB to make. Where
    `tells_all`, all are found.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)
    tells_all: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if not cls.tells_all:
            _stop_at_first(schema)
        return schema


class InPart(Strict):
    """Base of what is read in part: fields that it does not name are dropped, whatever they say."""

    model_config = ConfigDict(extra="ignore")


class Forgiving(Strict):
    """Base of what clients send with more than they mean: a message goes back with all fields of a response.

    Unknown fields are dropped that say nothing, null or an empty list, and those of `fields.IDLE`.
    """

    @model_validator(mode="before")
    @classmethod
    def _drop_idle(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.keys() <= (known := _names(cls)):
            return data
        return {
            name: value
            for name, value in data.items()
            if name in known or not (name in IDLE or value is None or value == [])
        }


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items())


class BadField(InvalidArgument):
    """A field of the caller's own body, by its name there."""


def _well_formed(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be well-formed Unicode (it has a lone surrogate)") from None
    return value


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    try:
        jsontext.write("", value)
    except InvalidArgument as error:
        raise ValueError(error.problem) from None
    return value


def _limit(value: int) -> int:
    if value == 0:
        raise ValueError("must be at least 1; -1 is no limit")
    return value


def limit(value: int | None) -> int | None:
    """Return a Limit as the contract has it: None is no limit."""
    return None if value == -1 else value


def _stop(value: str) -> str:
    if not 1 <= len(value.encode()) <= MAX_STOP_BYTES:
        raise ValueError(f"stop strings have 1 to {MAX_STOP_BYTES} bytes")
    return value


def _key_part(value: str) -> str:
    try:
        return check_text("", value)
    except InvalidArgument as error:
        raise ValueError(error.problem) from None


Text = Annotated[str, AfterValidator(_well_formed)]
"""JSON can spell half of a surrogate pair; UTF-8 cannot."""

JsonObject = Annotated[dict[str, Any], AfterValidator(_json_object)]
"""An object that goes on as JSON text. A body is no deeper than the contract takes it."""

StopString = Annotated[Text, AfterValidator(_stop)]
Count = Annotated[int, Field(ge=1, le=UINT32)]
Limit = Annotated[int, Field(ge=-1, le=UINT32, json_schema_extra={"not": {"const": 0}}), AfterValidator(_limit)]
"""A count, or -1 for no limit."""

TopK = Annotated[int, Field(ge=-1, le=UINT32), AfterValidator(lambda value: max(value, 0))]
"""-1 is vLLM's word for all tokens, 0 everybody's."""

TopP = Annotated[float, Field(ge=0, le=SAMPLING["top_p"].high), AfterValidator(lambda value: max(value, _TOP_1))]
"""0 keeps the most likely token alone, as OpenAI has it."""

ToolName = Annotated[Text, Field(min_length=1, max_length=MAX_TOOL_NAME)]
"""MCP has dots and slashes in names."""

KeyPart = Annotated[str, Field(min_length=1), AfterValidator(_key_part)]
"""A part of an agent's key, such as its model, or a label."""


_TOO_DEEP = f"must not be nested deeper than {MAX_DEPTH}"


def parse_body(body: bytes | bytearray, schema: type[_Model]) -> _Model:
    """Return `body` as `schema`. Raises InvalidArgument that names the field, or "body" where it is no JSON object."""
    return checked(_parse(body), schema)


def checked(data: Json, schema: type[_Model]) -> _Model:
    """Return `data` as `schema`. Raises BadField."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        worst = deepest(complaints(error, data))
        raise BadField(dotted(worst.path, "body"), worst.problem) from None


def _parse(body: bytes | bytearray) -> dict[str, Any]:
    jsonsize.check("body", body, jsonsize.BODY)
    try:
        data = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction)
    except UnicodeDecodeError as error:
        raise InvalidArgument("body", f"must be UTF-8; byte {error.start} is not") from None
    except json.JSONDecodeError as error:
        raise InvalidArgument("body", f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InvalidArgument("body", _TOO_DEEP) from None
    except ValueError:
        raise InvalidArgument("body", "holds a number that is out of range") from None
    if not isinstance(data, dict):
        raise InvalidArgument("body", "must be a JSON object")
    if not shallow(data):
        raise InvalidArgument("body", _TOO_DEEP)
    return data


def _integer(text: str) -> int:
    return int(text)  # in a function of Python, between whose calls other threads run: a million take 60 ms


def _fraction(text: str) -> float:
    return float(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > jsonsize.MAX_MEMBERS:
        raise InvalidArgument("body", f"must not have an object of more than {jsonsize.MAX_MEMBERS} members")
    made = dict(pairs)
    if len(made) < len(pairs):  # readers differ on which one counts, so what one of them checked another might not see
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidArgument(shown_name(name), "is given more than once")
            seen.add(name)
    return made
