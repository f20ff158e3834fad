"""The body of a request as a JSON object, and pydantic's complaints about it as one of ours."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentmem.errors import InvalidArgument
from agentmem.jsontext import MAX_DEPTH, shallow
from gateway.validation import complaints, deepest, dotted, printable

_Model = TypeVar("_Model", bound=BaseModel)
_TOO_DEEP = f"must not be nested deeper than {MAX_DEPTH}"


def parse_body(body: bytes, schema: type[_Model]) -> _Model:
    """`body` as `schema`. Raises InvalidArgument that names the field, or "body" where it is no JSON object."""
    data = _parse(body)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        worst = deepest(complaints(error, data))
        raise InvalidArgument(dotted(worst.path, "body"), worst.problem) from None


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
                raise InvalidArgument(printable(name), "is given more than once")
            seen.add(name)
    return made
