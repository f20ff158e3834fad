"""JSON that the contract carries as text: values that every reader of a request can work with, or why not."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentmem import jsonsize
from agentmem.errors import InvalidArgument

MAX_DEPTH = 64
"""How many arrays and objects may stand one in another, so that whoever works with a value may recurse."""


def parse(field: str, text: str, kind: type) -> Any:
    """The value of `kind` (list or dict) that `text` spells. Raises InvalidArgument that names `field`.

    What it returns can be written as UTF-8 and walked without deep recursion: half surrogate pairs and nesting beyond
    MAX_DEPTH are refused, and so is more than jsonsize.TEXT.
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
    """Return `value`, which is finite JSON, as text that `parse` takes. Raises InvalidArgument that names `field`."""
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
    """The object that a text spells; the value itself where it is no text, or spells none that `parse` takes."""
    if not isinstance(value, str):
        return value
    try:
        return parse("", value, dict)
    except InvalidArgument:
        return value


def shallow(value: Any, members: int | None = None) -> bool:
    """Return whether `value` is nested no deeper than MAX_DEPTH, and its objects have at most `members`."""
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
    """All texts in a value, names of members among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from strings(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)
