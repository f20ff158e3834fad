"""Meanings of PostgreSQL's failures."""

from typing import Final

import psycopg

from agentmem.errors import AgentmemError, ResourceExhausted, Unavailable
from cache_service.damage import LedgerDamaged
from cache_service.ledger.ledgers import Failure

_CONFLICTS: Final = ("40001", "40P01", "23503", "23505")
"""Serialization failure, deadlock, a row that another transaction has deleted or inserted."""
_ENDED: Final = ("25P03", "25P04", "57P01", "57P02", "57P03", "57P05")
_TIMEOUTS: Final = ("57014", "55P03")
_DAMAGE: Final = ("XX001", "XX002")


class OutcomeUnknown(Unavailable):
    """The server did not say that it has committed, or its standby may not have it: repeat it with the same
    commit_id.
    """


def is_conflict(error: psycopg.Error) -> bool:
    """Return whether another transaction has undone this one."""
    return error.sqlstate in _CONFLICTS


def leaves_doubt(error: psycopg.Error, *, closed: bool) -> bool:
    """Return whether a COMMIT that failed may have been made: the session ended, and not for idleness before it."""
    return (closed or error.sqlstate in _ENDED) and error.sqlstate != "25P03"


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the server or the session is gone."""
    state = error.sqlstate or ""
    return state in _ENDED or state.startswith("08") or (not state and isinstance(error, psycopg.OperationalError))


def kind(error: psycopg.Error) -> Failure:
    state = error.sqlstate or ""
    if state == "53100":
        return Failure.FULL
    if state in _DAMAGE:
        return Failure.DAMAGED
    return Failure.UNREACHABLE if is_lost(error) else Failure.BUSY


def as_contract(error: psycopg.Error) -> AgentmemError | None:
    """Return the error of the contract; None for a bug."""
    state = error.sqlstate or ""
    if is_lost(error):
        return Unavailable("the ledger's database cannot be reached; nothing was changed; try again")
    if is_conflict(error):
        return Unavailable("too many write the same rows of the ledger; nothing was changed; try again")
    if state in _TIMEOUTS:
        return Unavailable("the ledger's database took too long; nothing was changed; try again")
    if state == "53100":
        return ResourceExhausted("the disk of the ledger's database is full; nothing was changed", 5.0)
    if state.startswith("53"):
        return Unavailable("the ledger's database has no room for this session; nothing was changed; try again")
    if state in _DAMAGE:
        return LedgerDamaged("a page of the ledger's database")
    return None
