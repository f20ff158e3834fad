"""PromQL as text: what an expression names, and how Grafana and tests fill it in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_KEYWORDS = {"and", "or", "unless", "bool", "inf", "nan", "offset"}
_LABELLED = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"
_SUFFIXES = ("_total", "_bucket", "_sum", "_count")
_COMPARISON = re.compile(r"(?<= )(==|!=|>=|<=|>|<)(?= )")


def metric_names(expression: str) -> set[str]:
    """The metrics in an expression: its words that are no label, function, keyword, string or duration."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    bare = re.sub(r"\{[^{}]*\}", "{}", bare)
    bare = re.sub(_LABELLED, "", bare)
    bare = re.sub(r"\[[^\]]*\]", "", bare)
    words = re.findall(r"(?<![\w.:])[a-zA-Z_:][\w:]*(?!\w|\s*\()", bare)
    return {word for word in words if word.lower() not in _KEYWORDS}


def family(metric: str) -> str:
    """A metric's name without what its type appends."""
    return next((metric.removesuffix(suffix) for suffix in _SUFFIXES if metric.endswith(suffix)), metric)


def arms(expression: str) -> list[str]:
    """Return what each `or` on its own line joins."""
    return re.split(r"\n\s*or\s*\n", expression.strip())


def with_bool(expression: str) -> str:
    """Each comparison tells 0 or 1, instead of leaving out what is well: no answer then means an operand without data.

    Comparisons stand between spaces; those of labels do not.
    """
    return _COMPARISON.sub(r"\1 bool", expression)


def filled_in(expression: str, variables: Mapping[str, Sequence[str]], intervals: Mapping[str, str]) -> str:
    """A panel's expression as Grafana sends it, with all values of each variable chosen, and its own intervals."""
    for name, values in variables.items():
        chosen = "|".join(re.escape(value).replace("\\", "\\\\") for value in values)
        expression = expression.replace(f"${name}", chosen if len(values) == 1 else f"({chosen})")
    for name, value in intervals.items():
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression, f"a variable that no dashboard has: {expression}"
    return expression
