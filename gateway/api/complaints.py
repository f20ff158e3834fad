"""Errors of pydantic about a request's body, as paths in that body and in our words.

It leaves out the names of a union's branches, and nothing of the body but names that look like names is in it.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.api.fields import REFUSED

_KEY = "[key]"  # what pydantic's location of a bad key ends with
_NOT_THERE = frozenset({"missing", "extra_forbidden"})  # the latter's name may be ill-formed, and not found again
_NO_BRANCH = frozenset({"union_tag_invalid", "union_tag_not_found"})
_NAME = re.compile(r"[A-Za-z0-9_.$*-]{1,64}")
_MESSAGES = {
    "extra_forbidden": "is not supported",
    "missing": "is required",
    "finite_number": "must be a finite number",
    "string_unicode": "must be well-formed Unicode (it has a lone surrogate)",
    "too_long": "has too many elements",
    "union_tag_not_found": "is required",
}


class Complaint(NamedTuple):
    """One thing that is wrong. `kind` is pydantic's word for it; `of_key`: the last part of `path`, not its value."""

    path: tuple[str | int, ...]
    problem: str
    kind: str
    of_key: bool


def complaints(error: ValidationError, data: Any) -> list[Complaint]:
    """Return what `error` says about `data`, once for each place.

    Of a union's complaints the deepest is about the branch that was meant, or one that knows the type at least: those
    on the way to another are left out.
    """
    found = [_complaint(one, data) for one in error.errors(include_url=False, include_input=False)]
    passed = {one.path[:length] for one in found for length in range(len(one.path))}
    by_place: dict[tuple[str | int, ...], Complaint] = {}
    for one in sorted(found, key=_about_type):
        if one.path not in passed:
            by_place.setdefault(one.path, one)
    return [one for one in found if by_place.get(one.path) is one]


def deepest(of: Sequence[Complaint]) -> Complaint:
    """Return the one to report where only one can be."""
    return max(of, key=lambda one: (len(one.path), not _about_type(one)))


def dotted(path: Sequence[str | int], whole: str) -> str:
    """Return `path` as `messages[2].role`; `whole` where it is empty."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{shown_name(part)}" for part in path)
    return text.removeprefix(".") or whole


def shown_name(name: str) -> str:
    """Return a name that a caller made up, if it looks like one; it may be anything, a prompt included."""
    return name if _NAME.fullmatch(name) else "(a name)"


def _about_type(complaint: Complaint) -> bool:
    return complaint.kind.endswith("_type")


def _complaint(error: ErrorDetails, data: Any) -> Complaint:
    path = _followed(error["loc"], data, absent=error["type"] in _NOT_THERE).path
    if error["type"] in _NO_BRANCH:
        path = [*path, error["ctx"]["discriminator"].strip("'")]
    of_key = error["type"] == "extra_forbidden" or _KEY in error["loc"]
    return Complaint(tuple(path), _message(error), error["type"], of_key)


class _Path(NamedTuple):
    """A way through data that a location may mean. `end`: its last part is there (2), may be absent (1), or neither."""

    end: int
    path: list[str | int]


def _followed(loc: tuple[int | str, ...], data: Any, *, absent: bool) -> _Path:
    """Return the parts of `loc` that lead through `data`.

    pydantic's location also names branches of unions, which are dropped. The last part may be `absent` there. A branch
    can have the name of a field ("text" of {"type": "text", "text": …}), so each part is tried as both, and what leads
    to the last part counts, or else what leads farthest.
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


def _message(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden" and (advice := REFUSED.get(str(error["loc"][-1]))):
        return f"is not supported: {advice}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "union_tag_invalid":
        return f"is not supported here; supported are {error['ctx']['expected_tags'].replace(chr(39), '')}"
    return _MESSAGES.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:]
