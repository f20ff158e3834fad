"""Findings of a check."""

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
    """As namespace/agent/model."""
    mendable: bool = False


@dataclass(frozen=True)
class Checked:
    """`published` counts files; None: of a cluster, which has none."""

    findings: list[Finding]
    mended: list[Finding]
    agents: int
    published: int | None = None

    @property
    def is_clean(self) -> bool:
        return len(self.findings) == len(self.mended)


Report = Callable[[Finding], None]


class CannotCheck(Exception):
    """The directory cannot be checked; the message says why, and what to do."""
