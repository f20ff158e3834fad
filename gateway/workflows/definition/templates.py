"""Texts with `${name}` in them. Pure.

A name is a letter, then letters, digits, _ and -; after a point may stand free text, such as an option of a vote:
`${outcome.vote.tally.plan B}`. `$5` is what it is, and `$${x}` is the text `${x}`. What is filled in is never filled
again: an agent that says `${name}` has said just that.
"""

import json
import re
import string
from collections.abc import Mapping
from typing import Any, Final

from agentmem.errors import FailedPrecondition

MAX_FILLED: Final = 256 * 1024
"""Characters of one text, filled in: what was said has no bound that a file's checks could know."""


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
    """Return whether a `${` has no name and } after it. Such a text can't be filled in."""
    return any(found["invalid"] is not None for found in _found(text))


def filled_length(text: str, values: Mapping[str, str]) -> int:
    """Names without a value count nothing."""
    return len(text) + sum(len(values.get(name, "")) - len(f"${{{name}}}") for name in references(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """Raise KeyError for a missing value, ValueError if misspelled."""
    return _Template(text).substitute(values)


def fill_within_bounds(text: str, values: Mapping[str, str], what: str) -> str:
    """Fill, or raise FailedPrecondition, about `what`, before the text is made: one that names others grows from phase
    to phase.
    """
    if len(text) + sum(len(values[name]) - len(f"${{{name}}}") for name in references(text)) > MAX_FILLED:
        raise FailedPrecondition(
            f"{what} would have more than {MAX_FILLED} characters with what was said filled in; name fewer texts in "
            "it, or give agents a smaller max_tokens, and begin another run"
        )
    return fill(text, values)


def spelled(value: Any) -> str:
    """Return a JSON value as texts have it: null is "none".

    Numbers have 15 digits, without trailing zeros: so many are exact, and a mean of 0.1 and 0.2 is 0.15.
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e16 else f"{value:.15g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def outcome_text(outcome: Any, field: str) -> str:
    """Return the value of `${outcome.PHASE.field}`; "none" where there is no such field.

    The whole of `field` is a key, or else what is before its first point: so "tally.v1.0" is the option "v1.0".
    """
    if isinstance(outcome, dict):
        if field in outcome:
            return spelled(outcome[field])
        first, _, rest = field.partition(".")
        if rest and first in outcome:
            return outcome_text(outcome[first], rest)
    return spelled(None)


def _found(text: str) -> list[re.Match[str]]:
    return list(_Template.pattern.finditer(text))  # type: ignore[attr-defined]
