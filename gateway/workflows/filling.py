"""Templates, filled in with what was said, which has no bound that a file's checks could know. Pure.

A run that goes over these bounds has failed: what would be read is longer than models read, and a text that is named
often, or that names others, grows from phase to phase.
"""

from collections.abc import Mapping
from typing import Final

from agentmem.errors import FailedPrecondition
from gateway.workflows.definition.templates import fill, references

MAX_FILLED: Final = 256 * 1024
"""Characters of one text."""
MAX_UNREAD: Final = 1024 * 1024
"""Characters of what one agent has to read at a time."""


def filled(text: str, values: Mapping[str, str], what: str) -> str:
    """`text` with the values of what it names; `what` it is, and where, is for the error.

    Raises FailedPrecondition if it would be longer than MAX_FILLED, before it is made, and KeyError as fill() does.
    """
    length = len(text) + sum(len(values[name]) - len(f"${{{name}}}") for name, _ in references(text))
    if length > MAX_FILLED:
        raise FailedPrecondition(
            f"{what} would have more than {MAX_FILLED} characters with what was said filled in; name fewer texts in "
            "it, or give agents a smaller max_tokens, and begin another run"
        )
    return fill(text, values)


def check_unread(length: int, agent: str, phase: str) -> None:
    """Raises FailedPrecondition if `agent` has more to read than it may."""
    if length > MAX_UNREAD:
        raise FailedPrecondition(
            f"{agent} would have more than {MAX_UNREAD} characters to read at a time in phase {phase}; give the phase "
            "fewer rounds, or agents a smaller max_tokens, and begin another run"
        )
