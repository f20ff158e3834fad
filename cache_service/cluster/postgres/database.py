"""PostgreSQL as the ledger's database: transactions that read, and transactions that write, each on a thread.

**Isolation.** A transaction that reads is REPEATABLE READ, READ ONLY: one consistent state. One that writes is READ
COMMITTED, and locks what it decides by: every function that changes an agent (a run's record) begins by reading its row
with `Differences.for_change`, so that of two writers one waits, and then reads what the other has made: compare-and-set
needs no more. Who drops segments locks each before it looks at who stands on it. Where there is no row to lock, two who
create it meet in its unique index, and the second runs again. SERIALIZABLE would find the same, but also conflicts that
are none: it watches pages of indexes, and turns of different agents are neighbours there, so each busy namespace would
run transactions in vain; and it aborts at COMMIT, where a lock has waited before anything was done.

**Commits are never cancelled.** A cancelled wait for the synchronous standby leaves the row visible and unreplicated,
and only a warning says so. So psycopg is used synchronously, on threads that no task's cancellation and no signal
reaches (statement_timeout ends no COMMIT), and a commit that brought a warning, or no answer, is OutcomeUnknown.
Whoever repeats it learns more: the locks of the first attempt, if it is still under way, hold the repetition back, and
the repetition writes to the log, so its own commit waits for a standby that has everything before it.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, ParamSpec, TypeVar

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
"""How often a transaction is run that others, or a lost connection, undo."""
_PAUSE: Final = 0.01
"""Seconds before the second attempt, at most; before each further one up to twice as long."""
_REPEAT: Final = 0.5
"""Seconds between repetitions of a commit whose outcome is unknown."""

_BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BEGIN_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_WRITE_TO_LOG: Final = "SELECT pg_logical_emit_message(true, 'agentmem', '')"
"""Lets a COMMIT wait for the standby that would otherwise have nothing to wait for."""


class _Session:
    """A connection, and the warnings that it has brought. One that a statement has failed on is closed."""

    def __init__(self, settings: Settings) -> None:
        self.warnings: list[str] = []
        self.connection = connect(settings, self._prepare)
        self._pipelines = ExitStack()
        self._pipelined: adapter.Session | None = None

    def close(self) -> None:
        """End the session, whatever it was doing."""
        self.connection.close()
        with suppress(psycopg.Error):  # there is nothing left to receive
            self._pipelines.close()

    def _prepare(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        adapter.register(connection.adapters)
        connection.add_notice_handler(self._hear)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warnings.append(f"{notice.sqlstate}: {notice.message_primary}")

    @property
    def status(self) -> TransactionStatus:
        """Whether a transaction is open; UNKNOWN if the connection is lost."""
        return self.connection.info.transaction_status

    @contextmanager
    def transaction(self, begin: str, differences: Differences) -> Iterator[adapter.Connection]:
        """A transaction, which is rolled back unless it was committed."""
        if self._pipelined is None:
            pipeline = self._pipelines.enter_context(self.connection.pipeline())
            self._pipelined = adapter.Session(self.connection, pipeline)
        try:
            yield adapter.Connection(self._pipelined, begin, differences)
        except psycopg.Error:
            self.close()  # what was sent behind the statement that failed is of no use, and the server rolls back
            raise
        finally:
            if self.status is TransactionStatus.INTRANS:
                with suppress(psycopg.Error):  # then the session is lost, which ends it, too
                    self.connection.execute("ROLLBACK")
                    self._pipelined.pipeline.sync()

    def commit(self, transaction: adapter.Connection) -> None:
        """Commit, with what was not sent yet.

        Raises OutcomeUnknown; psycopg.Error and Internal where it is rolled back, as the server says.
        """
        self.warnings.clear()
        for _ in range(2):  # what the server has said, and that it has closed: who was idle for too long has not begun
            self.connection.pgconn.consume_input()
        try:
            ended = transaction.execute("COMMIT").ended
        except psycopg.Error as error:
            # A server that ends says so at once behind what it has done: that it has closed is known later.
            is_over = self.connection.closed or failures.is_end(error)
            if is_over and not failures.is_before_commit(error):
                self.close()
                raise OutcomeUnknown("the ledger's database was lost during a commit; repeat it") from error
            raise
        if self.warnings:
            raise OutcomeUnknown(f"a commit may not be on the standby ({self.warnings[0]}); repeat it")
        if ended != "COMMIT":
            raise Internal("a transaction of the ledger was rolled back, because one of its statements had failed")


class Postgres(Transactions[Connection]):
    """A ledger on PostgreSQL. `open` once; coroutines are for one event loop, `_blocking` calls for other threads."""

    def __init__(self, settings: Settings, steps: Sequence[schema.Step] = schema.STEPS) -> None:
        super().__init__()
        self._settings = settings
        self._steps = steps
        self._writing = Threads(settings.writers, thread_name_prefix="postgres")
        self._reading = Threads(settings.readers, thread_name_prefix="postgres reads")
        self._idle: deque[_Session] = deque()

    def open(self) -> None:
        """Create the tables or migrate them, unless the server is refused. Blocks.

        Raises settings.UnsafeServer, schema.SchemaTooNew, Unavailable where no server is reached, and psycopg.Error.
        """
        try:
            session = _Session(self._settings)
        except psycopg.OperationalError as error:
            raise Unavailable(f"the ledger's database cannot be used ({str(error).strip()})") from error
        try:
            schema.migrate(session.connection, self._settings.schema, self._steps)
        except BaseException:
            session.close()
            raise
        self._idle.append(session)

    def open_existing(self) -> bool:
        """`open` that makes and migrates nothing; whether there is a ledger. Raises what `open` raises."""
        if not self.read_blocking(schema.exists):
            return False
        self.read_blocking(schema.refuse_newer, self._steps)
        return True

    def close(self) -> None:
        """Wait for what is queued, and close the connections."""
        self._reading.shutdown()
        self._writing.shutdown()
        self._close_idle()

    def read_within(self, seconds: float | None, work: Work[Connection, _T]) -> _T:
        """`read_blocking` that raises TimeoutError where it had to wait so long; what has begun goes on, in vain."""
        call = self._submit_read(work)
        try:
            return call.result(seconds)
        except TimeoutError:
            call.cancel()  # or where each takes long, those of all who gave up would keep the readers
            raise

    def commit_blocking(self, work: Query[Connection, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`commit` for a thread that isn't the event loop's."""
        return self._submit_write(lambda connection: work(connection, *args, **kwargs), repeats=True).result()

    async def settle(self) -> None:
        """Return when the standby has all that could be read before: also a commit that its maker is in doubt of.

        Raises OutcomeUnknown, Unavailable.
        """
        await self.commit(lambda connection: connection.execute(_WRITE_TO_LOG))

    def _submit_read(self, work: Work[Connection, _T]) -> "Future[_T]":
        def transaction(session: _Session) -> _T:
            with session.transaction(_BEGIN_READ, adapter.READING) as connection:
                result = work(connection)
                connection.send()  # what is not sent yet may be a statement that writes, which is refused
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
        """Run a transaction, again where another one or a lost session has undone it."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0, _PAUSE * 2**attempt))
            try:
                with self._session() as session:
                    return transaction(session)
            except psycopg.Error as error:
                failure = error
                if failures.is_lost(error):
                    self._close_idle()  # they went to the same server
                elif not failures.is_conflict(error):
                    break
        self.on_failure(failures.kind(failure))
        raise failures.as_contract(failure) or failure from failure

    @contextmanager
    def _session(self) -> Iterator[_Session]:
        """A session outside of transactions, to be used by one thread. Raises Unavailable."""
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
