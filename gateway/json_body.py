"""The body of a request as a JSON object, and pydantic's complaints about it as one of ours."""

import json
import re
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentmem.errors import InvalidArgument
from agentmem.jsontext import MAX_DEPTH, shallow

_Model = TypeVar("_Model", bound=BaseModel)
_NOT_THERE = frozenset({"missing", "extra_forbidden"})  # the latter's name may be ill-formed, and not found again
_NO_BRANCH = frozenset({"union_tag_invalid", "union_tag_not_found"})
_NAME = re.compile(r"[A-Za-z0-9_.$-]{1,64}")
_TOO_DEEP = f"must not be nested deeper than {MAX_DEPTH}"
_MESSAGES = {
    "extra_forbidden": "is not supported",
    "missing": "is required",
    "finite_number": "must be a finite number",
    "string_unicode": "must be well-formed Unicode (it has a lone surrogate)",
    "too_long": "has too many elements",
    "union_tag_not_found": "is required",
}


def parse_body(body: bytes, schema: type[_Model]) -> _Model:
    """`body` as `schema`. Raises InvalidArgument that names the field, or "body" where it is no JSON object."""
    data = _parse(body)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True, include_input=False)
        # Of a union's complaints the deepest is about the branch that was meant, or one that knows the type at least.
        deepest = max(found, key=lambda one: (len(_path(one, data)), not one["type"].endswith("_type")))
        raise InvalidArgument(_dotted(_path(deepest, data)), _message(deepest)) from None


def _parse(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body.decode("utf-8"), object_pairs_hook=_object)
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):  # readers differ on which one counts, so what one of them checked another might not see
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidArgument(_printable(name), "is given more than once")
            seen.add(name)
    return made


def _path(error: ErrorDetails, data: Any) -> list[str | int]:
    """Where in `data` the error is; pydantic's own location also names branches of unions, which are dropped."""
    path = _followed(error["loc"], data, absent=error["type"] in _NOT_THERE).path
    return [*path, error["ctx"]["discriminator"].strip("'")] if error["type"] in _NO_BRANCH else path


class _Path(NamedTuple):
    """A way through data that a location may mean. `end`: its last part is there (2), may be absent (1), or neither."""

    end: int
    path: list[str | int]


def _followed(loc: tuple[int | str, ...], data: Any, *, absent: bool) -> _Path:
    """The parts of `loc` that lead through `data`; the last may be `absent` there.

    A branch can have the name of a field ("text" of {"type": "text", "text": …}), so each part is tried as both, and
    what leads to the last part counts, or else what leads farthest.
    """
    if not loc:
        return _Path(2, [])
    part, rest = loc[0], loc[1:]
    skipped = _followed(rest, data, absent=absent) if rest else _Path(0, [])
    if isinstance(data, dict) and part in data:
        taken = _followed(rest, data[part], absent=absent)
    elif isinstance(data, dict) and absent and not rest:
        taken = _Path(1, [])
    elif isinstance(data, list) and isinstance(part, int) and part < len(data):
        taken = _followed(rest, data[part], absent=absent)
    else:
        return skipped
    return max(_Path(taken.end, [part, *taken.path]), skipped, key=lambda way: (way.end, len(way.path)))


def _dotted(path: list[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in path)
    return text.removeprefix(".") or "body"


def _printable(name: str) -> str:
    """A name that a caller made up, if it looks like one; it may be anything, what was said included."""
    return name if _NAME.fullmatch(name) else "(a name)"


def _message(error: ErrorDetails) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "union_tag_invalid":
        return f"is not supported here; supported are {error['ctx']['expected_tags'].replace(chr(39), '')}"
    return _MESSAGES.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:]
