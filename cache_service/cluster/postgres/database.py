"""PostgreSQL as the ledger's database. docs/decisions.md says why writes are READ COMMITTED, and on threads."""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, ParamSpec, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from agentmem import tracing
from agentmem.errors import Internal, Unavailable
from agentmem.process.logs import event
from agentmem.tracing import Threads
from cache_service.cluster.postgres import adapter, failures, schema
from cache_service.cluster.postgres.failures import OutcomeUnknown
from cache_service.cluster.postgres.settings import Settings, UnsafeServer, connect
from cache_service.connection import Connection, Differences
from cache_service.ledger.ledgers import Failure, Query, Transactions, Work

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_P = ParamSpec("_P")
_ATTEMPTS: Final = 8
_PAUSE: Final = 0.01
"""Seconds before the second attempt, at most; then twice as many."""
_REPEAT: Final = 0.5
"""Seconds between repetitions of a commit whose outcome is unknown."""

_BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BEGIN_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_WRITE_TO_LOG: Final = "SELECT pg_logical_emit_message(true, 'agentmem', '')"
"""Makes a COMMIT that writes nothing else wait for the standby."""


class _Session:
    """A connection in pipeline mode, and its warnings."""

    def __init__(self, settings: Settings) -> None:
        self.warnings: list[str] = []
        self.connection = connect(settings)
        adapter.register(self.connection.adapters)
        self.connection.add_notice_handler(self._hear)
        self._pipelines = ExitStack()
        self._pipeline = self._pipelines.enter_context(self.connection.pipeline())

    def close(self) -> None:
        self.connection.close()
        with suppress(psycopg.Error):
            self._pipelines.close()

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warnings.append(f"{notice.sqlstate}: {notice.message_primary}")

    @property
    def status(self) -> TransactionStatus:
        """INTRANS while a transaction is open; UNKNOWN if the connection is lost."""
        return self.connection.info.transaction_status

    @contextmanager
    def transaction(self, begin: str, differences: Differences) -> Iterator[adapter.Connection]:
        """Begin a transaction, which is rolled back unless it was committed."""
        try:
            yield adapter.Connection(self.connection, self._pipeline, begin, differences)
        except psycopg.Error:
            self.close()  # the server rolls back
            raise
        finally:
            if self.status is TransactionStatus.INTRANS:
                with suppress(psycopg.Error):
                    self.connection.execute("ROLLBACK")
                    self._pipeline.sync()

    def commit(self, transaction: adapter.Connection) -> None:
        """Raises OutcomeUnknown; psycopg.Error and Internal where it is rolled back."""
        self.warnings.clear()
        for _ in range(2):  # its last message, then that it has closed
            self.connection.pgconn.consume_input()
        try:
            ended = transaction.execute("COMMIT").ended
        except psycopg.Error as error:
            # A server that ends says so after what it has done.
            if failures.leaves_doubt(error, closed=self.connection.closed):
                self.close()
                raise OutcomeUnknown("the ledger's database was lost during a commit; repeat it") from error
            raise
        if self.warnings:
            raise OutcomeUnknown(f"a commit may not be on the standby ({self.warnings[0]}); repeat it")
        if ended != "COMMIT":
            raise Internal("a transaction of the ledger was rolled back, because one of its statements had failed")


class Postgres(Transactions[Connection]):
    """`open` once; coroutines are for one event loop, `_blocking` calls for other threads."""

    def __init__(self, settings: Settings, steps: Sequence[schema.Step] = schema.STEPS) -> None:
        super().__init__()
        self._settings = settings
        self._steps = steps
        self._writing = Threads(settings.writers, thread_name_prefix="postgres")
        self._reading = Threads(settings.readers, thread_name_prefix="postgres reads")
        self._idle: deque[_Session] = deque()

    def open(self) -> None:
        """Create the tables or migrate them. Blocks.

        Raises UnsafeServer, SchemaTooNew, ForeignDatabase, psycopg.Error, Unavailable.
        """
        try:
            connection = connect(self._settings)
        except psycopg.OperationalError as error:
            raise Unavailable(f"the ledger's database cannot be used ({str(error).strip()})") from error
        with connection:
            schema.migrate(connection, self._settings.schema, self._steps)

    def open_existing(self) -> bool:
        """Return whether there is a ledger; make and migrate none. Raises as `open`."""
        return self.read_blocking(schema.is_there, self._steps)

    def close(self) -> None:
        self._reading.shutdown()
        self._writing.shutdown()
        self._close_idle()

    def read_within(self, seconds: float | None, work: Work[Connection, _T]) -> _T:
        """A read that has begun goes on after TimeoutError."""
        call = self._submit_read(work)
        try:
            return call.result(seconds)
        except TimeoutError:
            call.cancel()  # or the reads of all who gave up would keep the readers
            raise

    def commit_blocking(self, work: Query[Connection, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._submit_write(lambda connection: work(connection, *args, **kwargs), repeats=True).result()

    async def settle(self) -> None:
        """Return when the standby has all that could be read before. Raises OutcomeUnknown, Unavailable."""
        await self.commit(lambda connection: connection.execute(_WRITE_TO_LOG))

    def _submit_read(self, work: Work[Connection, _T]) -> "Future[_T]":
        def transaction(session: _Session) -> _T:
            with session.transaction(_BEGIN_READ, adapter.READING) as connection:
                result = work(connection)
                connection.send()  # what waits may write, and is refused
                return result

        return self._reading.submit(self._run, transaction)

    def _submit_write(
        self,
        work: Work[Connection, _T],
        erases: Callable[[_T], bool] | None = None,  # noqa: ARG002
        *,
        repeats: bool = False,
    ) -> "Future[_T]":
        return self._writing.submit(self._commit if repeats else self._write, work)

    def _write(self, work: Work[Connection, _T], *, in_doubt: bool = False) -> _T:
        def transaction(session: _Session) -> _T:
            with (
                tracing.within("transaction"),
                session.transaction(_BEGIN_WRITE, adapter.DIFFERENCES) as connection,
            ):
                result = work(connection)
                if in_doubt:
                    connection.execute(_WRITE_TO_LOG)
                session.commit(connection)
                for call in connection.when_committed:
                    call()
                return result

        result = self._run(transaction)
        for call in self.after_commit:
            call()
        return result

    def _commit(self, work: Work[Connection, _T]) -> _T:
        end = time.monotonic() + self._settings.known_seconds
        doubt: OutcomeUnknown | None = None
        while True:
            try:
                return self._write(work, in_doubt=doubt is not None)
            except Unavailable as error:
                if isinstance(error, OutcomeUnknown):
                    doubt = doubt or error
                    event(log, "the outcome of a commit is unknown", logging.WARNING, error=error.message)
                if time.monotonic() >= end:
                    raise doubt or error from error
            time.sleep(_REPEAT)

    def _run(self, transaction: Callable[[_Session], _T]) -> _T:
        """Run it again where another transaction or a lost session has undone it."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0, _PAUSE * 2**attempt))
            try:
                with self._session() as session:
                    return transaction(session)
            except psycopg.Error as error:
                failure = error
                if failures.is_lost(error):
                    self._close_idle()
                elif not failures.is_conflict(error):
                    break
        self.on_failure(failures.kind(failure))
        raise failures.as_contract(failure) or failure from failure

    @contextmanager
    def _session(self) -> Iterator[_Session]:
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._connected()
        try:
            yield session
        finally:
            if session.status is TransactionStatus.IDLE:
                self._idle.append(session)
            else:
                session.close()

    def _connected(self) -> _Session:
        try:
            return _Session(self._settings)
        except (psycopg.OperationalError, UnsafeServer) as error:
            self.on_failure(Failure.UNREACHABLE)
            raise Unavailable(f"the ledger's database cannot be used ({str(error).strip()})") from error

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
