"""Page sizes and page tokens. A token is the last key of a page, opaque to clients."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agentmem.errors import InvalidArgument

_T = TypeVar("_T")

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


def asked_size(request: Any) -> int:
    """Raises InvalidArgument."""
    if not request.HasField("page_size"):
        return DEFAULT_PAGE_SIZE
    if not 1 <= request.page_size <= MAX_PAGE_SIZE:
        raise InvalidArgument("page_size", f"must be 1 to {MAX_PAGE_SIZE}")
    return int(request.page_size)


def cut(found: Sequence[_T], size: int, key: Callable[[_T], tuple[str, ...]]) -> tuple[Sequence[_T], str]:
    """Return a page, and the next one's token or "", from up to `size` + 1 items."""
    return found[:size], token(key(found[size - 1])) if len(found) > size else ""


def token(key: tuple[str, ...]) -> str:
    """Return the token of the page after `key`."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def pair(token: str) -> tuple[str, str] | None:
    """Return None for the first page. Raises InvalidArgument."""
    found = _strings(token, 2)
    return (found[0], found[1]) if found else None


def number(token: str) -> int | None:
    """Return None for the first page. Raises InvalidArgument."""
    found = _strings(token, 1)
    if not found:
        return None
    if not found[0].isascii() or not found[0].isdigit() or len(found[0]) > 18:
        raise _bad_token()
    return int(found[0])


def _strings(token: str, count: int) -> list[str]:
    if not token:
        return []
    try:
        found = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
        if (
            isinstance(found, list)
            and len(found) == count
            and all(isinstance(part, str) and part.encode() for part in found)
        ):
            return found
    except (ValueError, RecursionError):
        pass
    raise _bad_token()


def _bad_token() -> InvalidArgument:
    return InvalidArgument("page_token", "must come from the response before")
