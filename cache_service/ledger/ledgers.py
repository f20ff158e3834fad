"""The database that the store's ledgers are in: SQLite's on one machine, PostgreSQL's on several.

A transaction is a function of a connection (see `cache_service.connection`); both engines run the same functions.
"""

# mypy: disable-error-code="misc"
# It takes a connection within Concatenate for a parameter, which a covariant type cannot be.

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from typing import Concatenate, Generic, ParamSpec, TypeVar

from cache_service.connection import Connection

_T = TypeVar("_T")
_P = ParamSpec("_P")
_C = TypeVar("_C", covariant=True)
"""A connection: what takes a more general one takes this one, too."""
Work = Callable[[_C], _T]
Query = Callable[Concatenate[_C, _P], _T]
"""Work that takes arguments besides."""


class Failure(StrEnum):
    """Why a database could not be read or written; a metric's label, but for BUSY."""

    FULL = "full"
    IO_ERROR = "io_error"
    DAMAGED = "damaged"
    UNREACHABLE = "unreachable"
    BUSY = "busy"


class Transactions(ABC, Generic[_C]):
    """An open database. Coroutines are for one event loop, the other calls for any other thread.

    All raise what is the caller's to handle: Unavailable, ResourceExhausted, Internal, LedgerDamaged.
    """

    scrub_owed: bool = False
    """Bytes of what was erased may still be where a scrub would overwrite them."""

    def __init__(self) -> None:
        self.after_commit: list[Callable[[], None]] = []
        """Called, on a thread of the database's, when a transaction of this process has been committed."""
        self.on_failure: Callable[[Failure], None] = lambda _: None
        """Called on the thread where it happens, for each failure that is not the caller's fault."""

    @abstractmethod
    def _submit_read(self, work: Work[_C, _T]) -> "Future[_T]":
        """Queue `work` for a thread that reads."""

    @abstractmethod
    def _submit_write(
        self, work: Work[_C, _T], erases: Callable[[_T], bool] | None = None, *, repeats: bool = False
    ) -> "Future[_T]":
        """Queue `work` for a thread that writes; `erases` as in `erase`, and `repeats` where `commit` asks."""

    @abstractmethod
    def read_within(self, seconds: float | None, work: Work[_C, _T]) -> _T:
        """`read_blocking` that raises TimeoutError where it had to wait so long."""

    @abstractmethod
    def close(self) -> None:
        """Wait for what is queued, and close."""

    async def read(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work`, with these arguments, in one consistent state. It cannot change anything."""
        return await asyncio.wrap_future(self._submit_read(lambda connection: work(connection, *args, **kwargs)))

    def read_blocking(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`read` for a thread that isn't the event loop's."""
        return self.read_within(None, lambda connection: work(connection, *args, **kwargs))

    async def write(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work`, with these arguments, as one durable transaction; if it raises, nothing has changed.

        A caller that is cancelled before its turn leaves nothing; one that is cancelled later leaves the whole
        transaction.
        """
        return await asyncio.wrap_future(self._submit_write(lambda connection: work(connection, *args, **kwargs)))

    def write_blocking(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`write` for a thread that isn't the event loop's."""
        return self._submit_write(lambda connection: work(connection, *args, **kwargs)).result()

    async def commit(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`write` of work that knows its own repetition, by a commit_id: done again where its outcome is unknown."""
        return await asyncio.wrap_future(
            self._submit_write(lambda connection: work(connection, *args, **kwargs), repeats=True)
        )

    async def settle(self) -> None:
        """Return when what was read before is as durable as a commit. Raises Unavailable where that is not known."""

    def erase(
        self, erases: Callable[[_T], bool], work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> "Future[_T]":
        """`write` from any thread; where what `work` returns `erases` anything, a scrub is owed."""
        return self._submit_write(lambda connection: work(connection, *args, **kwargs), erases)

    def scrub(self, patient: bool = True) -> "Future[None]":  # noqa: ARG002
        """Overwrite what was erased, as far as this database does that. From any thread."""
        done: Future[None] = Future()
        done.set_result(None)
        return done


Ledgers = Transactions[Connection]
