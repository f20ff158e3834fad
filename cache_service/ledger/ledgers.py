"""A database of ledgers: SQLite's on one machine, PostgreSQL's on several."""

# mypy: disable-error-code="misc"
# A connection within Concatenate counts as a parameter, which a covariant type cannot be.

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
Work = Callable[[_C], _T]
Query = Callable[Concatenate[_C, _P], _T]


class Failure(StrEnum):
    """A metric's label, except BUSY."""

    FULL = "full"
    IO_ERROR = "io_error"
    DAMAGED = "damaged"
    UNREACHABLE = "unreachable"
    BUSY = "busy"


class Transactions(ABC, Generic[_C]):
    """Coroutines are for one event loop, other calls for other threads.

    All raise Unavailable, ResourceExhausted, Internal, LedgerDamaged.
    """

    scrub_owed: bool = False
    """Erased bytes may still be on the disk."""

    def __init__(self) -> None:
        self.after_commit: list[Callable[[], None]] = []
        """On a database thread."""
        self.on_failure: Callable[[Failure], None] = lambda _: None
        """On the failing thread, not for callers' faults."""

    @abstractmethod
    def _submit_read(self, work: Work[_C, _T]) -> "Future[_T]":
        """Queue `work` for a reading thread."""

    @abstractmethod
    def _submit_write(
        self, work: Work[_C, _T], erases: Callable[[_T], bool] | None = None, *, repeats: bool = False
    ) -> "Future[_T]":
        """Queue `work`; `erases` as in `erase`, `repeats` for `commit`."""

    @abstractmethod
    def read_within(self, seconds: float | None, work: Work[_C, _T]) -> _T:
        """Raises TimeoutError after waiting for so long."""

    @abstractmethod
    def close(self) -> None:
        """Wait for queued work, and close."""

    async def read(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work` in one consistent state."""
        return await asyncio.wrap_future(self._submit_read(lambda connection: work(connection, *args, **kwargs)))

    def read_blocking(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self.read_within(None, lambda connection: work(connection, *args, **kwargs))

    async def write(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work` as one durable transaction. If cancelled before its turn it does nothing, later it is
        completed.
        """
        return await asyncio.wrap_future(self._submit_write(lambda connection: work(connection, *args, **kwargs)))

    def write_blocking(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._submit_write(lambda connection: work(connection, *args, **kwargs)).result()

    async def commit(self, work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Write `work` that detects its repetition by a commit_id, again if the outcome is unknown."""
        return await asyncio.wrap_future(
            self._submit_write(lambda connection: work(connection, *args, **kwargs), repeats=True)
        )

    async def settle(self) -> None:
        """Wait until what was read is as durable as a commit. Raises Unavailable."""

    def erase(
        self, erases: Callable[[_T], bool], work: Query[_C, _P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> "Future[_T]":
        """Write from any thread; a scrub is owed if the result `erases` anything."""
        return self._submit_write(lambda connection: work(connection, *args, **kwargs), erases)

    def scrub(self, patient: bool = True) -> "Future[None]":  # noqa: ARG002
        done: Future[None] = Future()
        done.set_result(None)
        return done


Ledgers = Transactions[Connection]
