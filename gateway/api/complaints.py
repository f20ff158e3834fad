"""Errors of pydantic about a body, as paths in it and in our words.

Nothing of the body is in them but names that look like names.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_KEY = "[key]"  # pydantic's location of a bad key ends with it
_NOT_THERE = frozenset({"missing", "extra_forbidden"})
_NO_BRANCH = frozenset({"union_tag_invalid", "union_tag_not_found"})
_NAME = re.compile(r"[A-Za-z0-9_.$*-]{1,64}")
_MESSAGES = {
    "extra_forbidden": "is not supported",
    "missing": "is required",
    "finite_number": "must be a finite number",
    "too_long": "has too many elements",
    "union_tag_not_found": "is required",
}


class Complaint(NamedTuple):
    """`kind` is pydantic's word; `of_key`: the last part of `path` is wrong, and not its value."""

    path: tuple[str | int, ...]
    problem: str
    kind: str
    of_key: bool


def complaints(error: ValidationError, data: Any) -> list[Complaint]:
    """Return what `error` says about `data`, once for each place.

    Of a union's complaints the deepest is about the branch that was meant, or knows the type at least.
    """
    told = error.errors(include_url=False, include_input=False)
    found = [_complaint(one, data) for one in told if "Other" not in one["loc"]] or [_complaint(told[0], data)]
    passed = {one.path[:length] for one in found for length in range(len(one.path))}
    by_place: dict[tuple[str | int, ...], Complaint] = {}
    for one in sorted(found, key=_about_type):
        if one.path not in passed:
            by_place.setdefault(one.path, one)
    return [one for one in found if by_place.get(one.path) is one]


def deepest(of: Sequence[Complaint]) -> Complaint:
    return max(of, key=lambda one: (len(one.path), not _about_type(one)))


def dotted(path: Sequence[str | int], whole: str) -> str:
    """`whole` is returned for an empty path."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{shown_name(part)}" for part in path)
    return text.removeprefix(".") or whole


def shown_name(name: str) -> str:
    """Return a name that a caller made up, if it looks like one; it may be anything, a prompt included."""
    return name if _NAME.fullmatch(name) else "(a name)"


def _about_type(complaint: Complaint) -> bool:
    return complaint.kind.endswith("_type")


def _complaint(error: ErrorDetails, data: Any) -> Complaint:
    path = _followed(error["loc"], data, absent=error["type"] in _NOT_THERE)
    if error["type"] in _NO_BRANCH:
        path = [*path, error["ctx"]["discriminator"].strip("'")]
    if error["type"] == "refused":
        path = [*path, error["ctx"]["name"]]
    of_key = error["type"] in ("extra_forbidden", "refused") or _KEY in error["loc"]
    return Complaint(tuple(path), _message(error), error["type"], of_key)


def _followed(loc: tuple[int | str, ...], data: Any, *, absent: bool) -> list[str | int]:
    """Return the parts of `loc` that lead through `data`, without names of branches; the last one may be `absent`."""
    path: list[str | int] = []
    for left, part in zip(reversed(range(len(loc))), loc, strict=True):
        is_there = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if is_there:
            path.append(part)
            data = data[part]
        elif absent and not left and isinstance(data, dict):
            path.append(part)
    return path


def _message(error: ErrorDetails) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "union_tag_invalid":
        return f"is not supported here; supported are {error['ctx']['expected_tags'].replace(chr(39), '')}"
    return _MESSAGES.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:]
