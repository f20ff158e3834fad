"""JSON that the contract carries as text."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentmem import jsonsize
from agentmem.errors import InvalidArgument

MAX_DEPTH = 64
"""Low enough to recurse over values."""


def parse(field: str, text: str, kind: type) -> Any:
    """Parse a list or dict (`kind`). Raises InvalidArgument, also beyond MAX_DEPTH or jsonsize.TEXT, and for lone
    surrogates.
    """
    jsonsize.check(field, text.encode(errors="surrogatepass"), jsonsize.TEXT)
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(field, "must be well-formed Unicode (it has an escaped lone surrogate)") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(field, "is not JSON") from error
    if not shallow(value):
        raise InvalidArgument(field, f"must not be nested deeper than {MAX_DEPTH}")
    if not isinstance(value, kind):
        raise InvalidArgument(field, f"must be a JSON {'array' if kind is list else 'object'}")
    return value


def write(field: str, value: Any) -> str:
    """Write text that `parse` takes. Raises InvalidArgument."""
    if jsonsize.count(value, jsonsize.TEXT.values) > jsonsize.TEXT.values:
        raise InvalidArgument(field, f"must not have more than {jsonsize.TEXT.values} values")
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(field, "must be well-formed Unicode (it has a lone surrogate)") from None
    except ValueError:
        raise InvalidArgument(field, "must hold finite numbers only") from None
    return text


def object_or_text(value: Any) -> Any:
    """Return the object in a text; what `parse` refuses is unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse("", value, dict)
    except InvalidArgument:
        return value


def shallow(value: Any, members: int | None = None) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if members is not None and any(isinstance(one, dict) and len(one) > members for one in level):
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return not level


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from strings(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)
