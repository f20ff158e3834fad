"""Bodies of requests as JSON objects, and the kinds of their fields."""

from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

from agentmem import jsonsize, jsontext
from agentmem.errors import InvalidArgument
from agentmem.jsonsize import MAX_MEMBERS
from agentmem.jsontext import MAX_DEPTH, shallow
from agentmem.limits import SAMPLING
from agentmem.validation import MAX_STOP_BYTES, check_text
from gateway.api.complaints import complaints, deepest, dotted, shown_name
from gateway.api.fields import REFUSED

_Model = TypeVar("_Model", bound=BaseModel)

_Element = TypeVar("_Element")

Json = dict[str, Any]


class _AtFirst(FailFast):
    __hash__ = object.__hash__  # for unions of types


Many = Annotated[list[_Element], _AtFirst()]
"""Read up to the first bad element: one error is told, and each takes 2 KB to make."""

UINT32 = 2**32 - 1
MAX_TOOL_NAME = 128

_TOP_1 = 1e-6
"""A top_p in which nothing fits but the most likely token."""


def within(parameter: str, high: float | None = None) -> Any:
    """`high` is a dialect's own upper bound."""
    bounds = SAMPLING[parameter]
    low, above = (None, bounds.low) if bounds.open else (bounds.low, None)
    return Field(ge=low, gt=above, le=bounds.high if high is None else high)


class Strict(BaseModel):
    """Base of all that is read from a request: no conversions, and nothing of it in errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class Forgiving(Strict):
    """Unknown fields are left out. SDKs learn new ones, and messages come back with all fields of a response."""

    model_config = ConfigDict(extra="ignore")


class Advised(Forgiving):
    """Bodies and messages have no fields of REFUSED but their own. Null or an empty list says nothing."""

    @model_validator(mode="before")
    @classmethod
    def _advise(cls, data: Any) -> Any:
        for name in data if isinstance(data, dict) else ():
            if name in REFUSED and name not in cls.model_fields and data[name] not in (None, []):
                raise PydanticCustomError(
                    "refused", "is not supported: {advice}", {"name": name, "advice": REFUSED[name]}
                )
        return data


class Body(Advised):
    model_config = ConfigDict(extra="allow")

    @property
    def unread(self) -> list[str]:
        return [shown_name(name) for name, value in (self.model_extra or {}).items() if value not in (None, [])]


class BadField(InvalidArgument):
    """A field of the caller's own body, by its name there."""


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
    """None is no limit in the contract."""
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


JsonObject = Annotated[dict[str, Any], AfterValidator(_json_object)]
"""An object that goes on as JSON text."""

StopString = Annotated[str, AfterValidator(_stop)]
Count = Annotated[int, Field(ge=1, le=UINT32)]
Limit = Annotated[int, Field(ge=-1, le=UINT32, json_schema_extra={"not": {"const": 0}}), AfterValidator(_limit)]
"""A count, or -1 for no limit."""

TopK = Annotated[int, Field(ge=-1, le=UINT32), AfterValidator(lambda value: max(value, 0))]
"""-1 is vLLM's word for all tokens, 0 everybody's."""

TopP = Annotated[float, Field(ge=0, le=SAMPLING["top_p"].high), AfterValidator(lambda value: max(value, _TOP_1))]
"""0 keeps the most likely token alone, as OpenAI has it."""

ToolName = Annotated[str, Field(min_length=1, max_length=MAX_TOOL_NAME)]
"""MCP has dots and slashes in names."""

KeyPart = Annotated[str, Field(min_length=1), AfterValidator(_key_part)]
"""A part of an agent's key, such as its model, or a label."""


_SHAPE = f"must not be nested deeper than {MAX_DEPTH}, nor have an object of more than {MAX_MEMBERS} members"


def parse_body(body: bytes | bytearray, schema: type[_Model]) -> _Model:
    """Raises InvalidArgument that names the field, or "body" where it is no JSON object."""
    jsonsize.check("body", body, jsonsize.BODY)
    try:
        data = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise InvalidArgument("body", f"is not JSON in UTF-8: {error}") from None
    if not isinstance(data, dict):
        raise InvalidArgument("body", "must be a JSON object")
    if not shallow(data, MAX_MEMBERS):
        raise InvalidArgument("body", _SHAPE)
    return checked(data, schema)


def checked(data: Json, schema: type[_Model]) -> _Model:
    """Raises BadField."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        worst = deepest(complaints(error, data))
        raise BadField(dotted(worst.path, "body"), worst.problem) from None
