"""Texts with `${name}` in them. Pure.

A name is a letter, then letters, digits, _ and -; after a point may stand free text: `${outcome.vote.tally.plan B}`.
`$5` is what it is, and `$${x}` is the text `${x}`. Values are never filled again.
"""

import json
import re
import string
from collections.abc import Mapping
from typing import Any, Final

from agentmem.errors import FailedPrecondition

MAX_FILLED: Final = 256 * 1024
"""Characters of one text, filled in."""


class _Template(string.Template):
    pattern = r"""
    \$(?:
      (?P<escaped>\$)(?=\{) |
      \{(?P<braced>[A-Za-z][A-Za-z0-9_-]*(?:\.[^.${}\x00-\x1f]+)*)\} |
      (?P<named>(?!)) |
      (?P<invalid>(?=\{))
    )
    """  # type: ignore[assignment]  # string.Template compiles it


def references(text: str) -> tuple[str, ...]:
    """Return the names in `text`, in its order, with repetitions."""
    return tuple(found["braced"] for found in _found(text) if found["braced"] is not None)


def misspelled(text: str) -> bool:
    """Return whether a `${` has no name and } after it."""
    return any(found["invalid"] is not None for found in _found(text))


def filled_length(text: str, values: Mapping[str, str]) -> int:
    """Names without a value count nothing."""
    return len(text) + sum(len(values.get(name, "")) - len(f"${{{name}}}") for name in references(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """Raise KeyError for a missing value, ValueError if misspelled."""
    return _Template(text).substitute(values)


def fill_within_bounds(text: str, values: Mapping[str, str], what: str) -> str:
    """Raise FailedPrecondition, about `what`, before a text that is too long is made."""
    if len(text) + sum(len(values[name]) - len(f"${{{name}}}") for name in references(text)) > MAX_FILLED:
        raise FailedPrecondition(
            f"{what} would have more than {MAX_FILLED} characters with what was said filled in; name fewer texts in "
            "it, or give agents a smaller max_tokens, and begin another run"
        )
    return fill(text, values)


def spelled(value: Any) -> str:
    """Null is "none", and 15 digits of a float are exact."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e16 else f"{value:.15g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def outcome_text(outcome: Any, field: str) -> str:
    """A field may have points: "tally.v1.0" is the option "v1.0". A missing one is "none"."""
    if isinstance(outcome, dict):
        if field in outcome:
            return spelled(outcome[field])
        first, _, rest = field.partition(".")
        if rest and first in outcome:
            return outcome_text(outcome[first], rest)
    return spelled(None)


def _found(text: str) -> list[re.Match[str]]:
    return list(_Template.pattern.finditer(text))  # type: ignore[attr-defined]
