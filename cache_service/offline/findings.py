"""Findings of a check: a fault, its consequence, and its repair."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One fault. `what` is a stable word for machines; other texts are for people."""

    what: str
    where: str
    problem: str
    consequence: str
    repair: str
    agents: tuple[str, ...] = ()
    """The agents concerned, as namespace/agent/model; for ledgers and KV."""
    mendable: bool = False
    """`--repair` mends it."""


Report = Callable[[Finding], None]
"""Takes a finding at once."""


class CannotCheck(Exception):
    """The directory cannot be checked; the message says why, and what to do."""
