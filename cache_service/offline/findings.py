"""What a check found: one fault, what follows from it, and how it is mended."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


def _nothing(*_: object) -> None: ...


class Mend(NamedTuple):
    """What `--repair` does about a fault: first modes, then rows, all of a database in one transaction, then files."""

    mode: Callable[[], None] = _nothing
    ledger: Callable[[sqlite3.Connection], object] = _nothing
    """Rows of store.db."""
    warm: Callable[[sqlite3.Connection], object] = _nothing
    """Rows of warm.db."""
    files: Callable[[], object] = _nothing


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
    mend: Mend | None = field(default=None, compare=False)
    """None: `--repair` cannot mend it."""


Report = Callable[[Finding], None]
"""Takes a finding as soon as it is made."""


class CannotCheck(Exception):
    """Nothing can be said about the directory; the message says why, and what to do."""


class LedgerLost(CannotCheck):
    """There are files of KV, and store.db is not theirs; the message says how."""
