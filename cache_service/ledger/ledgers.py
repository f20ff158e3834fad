"""What the store asks of the database that its ledgers are in: SQLite's on one machine, PostgreSQL's on several.

A transaction is a function of a connection (see `cache_service.connection`); both engines run the same functions.
"""

from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from cache_service.connection import Connection

_T = TypeVar("_T")
_P = ParamSpec("_P")
Work = Callable[[Connection], _T]
Query = Callable[Concatenate[Connection, _P], _T]
"""Work that takes arguments besides."""


class Failure(StrEnum):
    """Why a database could not be read or written; a metric's label, but for BUSY."""

    FULL = "full"
    IO_ERROR = "io_error"
    DAMAGED = "damaged"
    UNREACHABLE = "unreachable"
    BUSY = "busy"


class Ledgers(Protocol):
    """A database of ledgers, open. Coroutines are for one event loop, the other calls for any other thread.

    All raise what is the caller's to handle: Unavailable, ResourceExhausted, Internal, LedgerDamaged.
    """

    after_commit: list[Callable[[], None]]
    """Called, on a thread of the database's, when a transaction of this process has been committed."""
    on_failure: Callable[[Failure], None]
    """Called on the thread where it happens, for each failure that is not the caller's fault."""

    async def read(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work`, with these arguments, in one consistent state. It cannot change anything."""

    def read_blocking(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`read` for a thread that isn't the event loop's."""

    def read_within(self, seconds: float | None, work: Work[_T]) -> _T:
        """`read_blocking` that raises TimeoutError where it had to wait so long."""

    async def write(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work`, with these arguments, as one durable transaction; if it raises, nothing has changed."""

    def write_blocking(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`write` for a thread that isn't the event loop's."""

    async def commit(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`write` of work that knows its own repetition, by a commit_id: done again where its outcome is unknown."""

    async def settle(self) -> None:
        """Return when what was read before is as durable as a commit. Raises Unavailable where that is not known."""

    def erase(
        self, erases: Callable[[_T], bool], work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> "Future[_T]":
        """`write` from any thread; where what `work` returns `erases` anything, a scrub is owed."""

    @property
    def scrub_owed(self) -> bool:
        """Whether bytes of what was erased may still be where a scrub would overwrite them."""

    def scrub(self, patient: bool = True) -> "Future[None]":
        """Overwrite what was erased, as far as this database does that. From any thread."""

    def confirm(self, error: Exception) -> None:
        """Raise LedgerDamaged if rows that can't be, and no bug, are the cause of this error. Blocks."""

    def close(self) -> None:
        """Wait for what is queued, and close."""
