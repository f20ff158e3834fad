"""What was meant by a name that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A question that ends the sentence of a mistake, such as "; did you mean chat?"; empty if nothing is like it."""
    found = get_close_matches(given, list(known), n=3)
    return f"; did you mean {' or '.join(found)}?" if found else ""
