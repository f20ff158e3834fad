"""The body of a request as a JSON object, and pydantic's complaints about it as one of ours."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentmem.errors import InvalidArgument

_Model = TypeVar("_Model", bound=BaseModel)
_NOT_THERE = frozenset({"missing", "extra_forbidden"})  # the latter's name may be ill-formed, and not found again
_MESSAGES = {
    "extra_forbidden": "is not supported",
    "missing": "is required",
    "finite_number": "must be a finite number",
    "string_unicode": "must be well-formed Unicode (it has a lone surrogate)",
    "too_long": "has too many elements",
}


def parse_body(body: bytes, schema: type[_Model]) -> _Model:
    """`body` as `schema`. Raises InvalidArgument that names the field, or "body" where it is no JSON object."""
    data = _parse(body)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True, include_input=False)
        # Of a union's complaints the deepest is about the branch that was meant.
        deepest = max(found, key=lambda one: len(_path(one, data)))
        raise InvalidArgument(_dotted(_path(deepest, data)), _message(deepest)) from None


def _parse(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidArgument("body", f"must be UTF-8; byte {error.start} is not") from None
    except json.JSONDecodeError as error:
        raise InvalidArgument("body", f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InvalidArgument("body", "is nested too deeply") from None
    except ValueError:
        raise InvalidArgument("body", "holds a number that is out of range") from None
    if not isinstance(data, dict):
        raise InvalidArgument("body", "must be a JSON object")
    return data


def _path(error: ErrorDetails, data: Any) -> list[str | int]:
    """Where in `data` the error is; pydantic's own location also names branches of unions, which are dropped."""
    path: list[str | int] = []
    for position, part in enumerate(error["loc"]):
        last = position == len(error["loc"]) - 1
        if isinstance(data, dict) and (part in data or (last and error["type"] in _NOT_THERE)):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
        else:
            continue
        path.append(part)
    return path


def _dotted(path: list[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in path)
    return text.removeprefix(".") or "body"


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode("utf-8")[:128]


def _message(error: ErrorDetails) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return _MESSAGES.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:]
