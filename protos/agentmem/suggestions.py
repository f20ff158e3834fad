"""What was meant by a name that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A question that ends the sentence of a mistake, such as "; did you mean --data?"; empty if nothing is like it.

    Dashes and slashes at the beginning, which all have, make nothing alike.
    """
    names = {name.lstrip("-/"): name for name in known}
    found = get_close_matches(given.lstrip("-/"), names, n=2)
    return f"; did you mean {' or '.join(names[name] for name in found)}?" if found else ""
