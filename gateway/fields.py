"""What the bodies of requests are made of: how strictly they are read, and the kinds of their fields."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from agentmem.errors import InvalidArgument
from agentmem.keys import check_text
from agentmem.limits import MAX_STOP_BYTES

UINT32 = 2**32 - 1


class Strict(BaseModel):
    """Base of all that is read from a request: no conversions, no unknown fields, and nothing of it in errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


def _well_formed(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be well-formed Unicode (it has a lone surrogate)") from None
    return value


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("must be well-formed Unicode (it has a lone surrogate)") from None
    except ValueError:
        raise ValueError("must hold finite numbers only") from None
    return value


def _stop(value: str) -> str:
    if not 1 <= len(value.encode()) <= MAX_STOP_BYTES:
        raise ValueError(f"stop strings have 1 to {MAX_STOP_BYTES} bytes")
    return value


def _model(value: str) -> str:
    return check_text("model", value)


def check_namespace(value: str) -> str:
    """`value`, if it can be a namespace. Raises ValueError."""
    try:
        return check_text("namespace", value)
    except InvalidArgument as error:
        raise ValueError(error.problem) from None


Text = Annotated[str, AfterValidator(_well_formed)]
"""JSON can spell half of a surrogate pair; UTF-8 cannot."""

JsonObject = Annotated[dict[str, Any], AfterValidator(_json_object)]
"""An object that goes on as JSON text. A body is no deeper than the contract takes it."""

StopString = Annotated[Text, AfterValidator(_stop)]
Count = Annotated[int, Field(ge=1, le=UINT32)]
ModelName = Annotated[str, Field(min_length=1), AfterValidator(_model)]
