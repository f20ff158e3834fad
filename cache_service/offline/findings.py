"""What a check found: one fault, what follows from it, and what mends it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One fault. `what` is a stable word for machines; the other texts are for people."""

    what: str
    where: str
    problem: str
    consequence: str
    repair: str
    agents: tuple[str, ...] = ()
    """Whose memory it touches, as namespace/agent/model; for ledgers and for KV that an agent refers to."""
    mendable: bool = False
    """`--repair` mends it."""


Report = Callable[[Finding], None]
"""Takes a finding as soon as it is made."""


class CannotCheck(Exception):
    """Nothing can be said about the directory; the message says why, and what to do."""
