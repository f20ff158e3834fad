"""SQLite: one connection that writes, on a thread of its own, and several that read.

A write returns after the WAL was fsynced. Only a scrub keeps reads waiting.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from agentmem import layout, tracing
from agentmem.errors import AgentmemError, Internal, ResourceExhausted, Unavailable
from agentmem.process.logs import event
from agentmem.tracing import Threads
from cache_service.damage import LedgerDamaged
from cache_service.ledger import schema
from cache_service.ledger.ledgers import Failure, Transactions

log = logging.getLogger(__name__)

_T = TypeVar("_T")
Work = Callable[[sqlite3.Connection], _T]

READERS: Final = 3
"""A page of metrics may occupy one."""
DURABLE: Final = ("synchronous = FULL", "fullfsync = ON")
"""The second is for macOS, where fsync stops at the drive's cache."""
_PRAGMAS = (
    "auto_vacuum = INCREMENTAL",  # only before the first table
    "journal_mode = WAL",
    *DURABLE,
    "secure_delete = ON",  # overwrite deleted text with zeros
    "foreign_keys = ON",
    "recursive_triggers = ON",  # or REPLACE would not run those of DELETE
    "temp_store = MEMORY",  # no text in temporary files
    "journal_size_limit = 16777216",
)
_PRIMARY_CODE = 0xFF
_OF_DAMAGE = ("no such", "malformed", "Could not decode")
"""Texts of errors without a code, of a damaged database only."""
_PATIENT, _IMPATIENT = 5.0, 0.1
"""Seconds that a scrub waits for readers; no call is served meanwhile."""


_FAILURES = {
    sqlite3.SQLITE_FULL: Failure.FULL,
    sqlite3.SQLITE_IOERR: Failure.IO_ERROR,
    sqlite3.SQLITE_CANTOPEN: Failure.IO_ERROR,
    sqlite3.SQLITE_READONLY: Failure.IO_ERROR,
    sqlite3.SQLITE_CORRUPT: Failure.DAMAGED,
    sqlite3.SQLITE_NOTADB: Failure.DAMAGED,
    sqlite3.SQLITE_BUSY: Failure.BUSY,
    sqlite3.SQLITE_LOCKED: Failure.BUSY,
}


class Database(Transactions[sqlite3.Connection]):
    """store.db or warm.db. `open` once; `prepare` makes the tables."""

    def __init__(self, path: Path, prepare: Callable[[sqlite3.Connection], None] = schema.prepare) -> None:
        super().__init__()
        self._path = path
        self._prepare = prepare
        self._thread = Threads(1, thread_name_prefix="database")
        self._reading = Threads(READERS, thread_name_prefix="database reads")
        self._readers: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self.before_commit: list[Work[None]] = []
        """Added to every write transaction."""
        self._doubtful = False

    def open(self) -> None:
        """Create or migrate the file, and scrub it if possible now.

        Raises schema.SchemaTooNew, LedgerDamaged, sqlite3.Error, Unavailable, ResourceExhausted.
        """
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        self._path.chmod(0o600)
        self._opened = self._path.stat()
        try:
            self._connection, self._user_version = self._thread.submit(_connect, self._path, self._prepare).result()
        except BaseException as error:
            self._thread.shutdown()
            if isinstance(error, UnicodeDecodeError):  # its message has the damaged bytes
                raise LedgerDamaged("the schema") from error
            raise
        for _ in range(READERS):
            self._readers.put(_reader(self._path))
        try:  # a crash may have come before a scrub
            self._thread.submit(self._scrub, _IMPATIENT).result()
        except AgentmemError as error:
            event(log, "the database is not scrubbed yet", logging.WARNING, error=str(error))

    def _submit_read(self, work: Work[_T]) -> "Future[_T]":
        return self._reading.submit(self.read_within, None, work)

    def _submit_write(
        self,
        work: Work[_T],
        erases: Callable[[_T], bool] | None = None,
        *,
        repeats: bool = False,  # noqa: ARG002
    ) -> "Future[_T]":
        return self._thread.submit(self._write, work, erases)

    def read_within(self, seconds: float | None, work: Work[_T]) -> _T:
        with self._failures(), self._reader(seconds) as connection:
            return work(connection)

    def scrub(self, patient: bool = True) -> "Future[None]":
        """Move the whole WAL into the database, so that erased bytes are in neither.

        Raises Unavailable if another program is reading, without `patient` at once; ResourceExhausted. Then it stays
        owed.
        """
        return self._thread.submit(self._scrub, _PATIENT if patient else _IMPATIENT)

    def is_in_place(self) -> bool:
        """Return whether the opened file is at its path: SQLite keeps writing to a removed one."""
        try:
            return os.path.samestat(self._opened, self._path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._reading.shutdown()
        try:
            self.write_blocking(lambda _: None)
        finally:
            try:
                while not self._readers.empty():
                    self._readers.get().close()
                self._thread.submit(self._connection.close).result()
            finally:
                self._thread.shutdown()

    def _write(self, work: Work[_T], erases: Callable[[_T], bool] | None) -> _T:
        connection = self._connection
        with tracing.within("transaction"), self._failures():
            self._overwrite_doubtful()
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                for more in self.before_commit:
                    more(connection)
                self.scrub_owed |= erases is not None and erases(result)
                self._doubtful = True
                connection.execute("COMMIT")
                self._doubtful = False
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._overwrite_doubtful()
        for call in self.after_commit:
            call()
        return result

    def _overwrite_doubtful(self) -> None:
        """Overwrite what a failed commit left in the WAL, where a crash would bring it back."""
        if self._doubtful:
            with suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA user_version = {self._user_version}")
                self._doubtful = False

    def _scrub(self, seconds: float) -> None:
        self.scrub_owed = True
        with self._failures(), self._no_readers(seconds):
            _scrub(self._connection, seconds)
        self.scrub_owed = False

    @contextmanager
    def _reader(self, seconds: float | None = None) -> Iterator[sqlite3.Connection]:
        """Raises TimeoutError."""
        try:
            connection = self._readers.get(timeout=seconds)
        except Empty:
            raise TimeoutError("the database is busy") from None
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._readers.put(connection)

    @contextmanager
    def _no_readers(self, seconds: float) -> Iterator[None]:
        """Keep reads away, which would keep a part of the WAL."""
        taken: list[sqlite3.Connection] = []
        try:
            for _ in range(READERS):
                taken.append(self._readers.get(timeout=seconds))
            yield
        except Empty:
            raise Unavailable(
                f"{self._path.name} is being read, so what was erased is still in its WAL; try again"
            ) from None
        finally:
            for connection in taken:
                self._readers.put(connection)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        with database_errors(self.on_failure, self._path.name):
            try:
                yield
            except LedgerDamaged as error:
                event(log, "damaged", logging.ERROR, what=error.message)
                self.on_failure(Failure.DAMAGED)
                raise


def _connect(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> tuple[sqlite3.Connection, int]:
    connection = sqlite3.connect(path, timeout=_PATIENT, isolation_level=None)
    try:
        with database_errors():
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            prepare(connection)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection, version


def _reader(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=_PATIENT, isolation_level=None, check_same_thread=False)


def _scrub(connection: sqlite3.Connection, seconds: float) -> None:
    (usual,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute(f"PRAGMA busy_timeout = {min(usual, int(1000 * seconds))}").fetchall()
    try:
        connection.execute("PRAGMA incremental_vacuum").fetchall()
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {usual}").fetchall()
    if busy:
        raise Unavailable("another program is reading store.db, so what was erased is still in its WAL; try again")


@contextmanager
def database_errors(
    on_failure: Callable[[Failure], None] = lambda _: None, name: str = layout.DATABASE
) -> Iterator[None]:
    """Turn SQLite's errors into the contract's: ResourceExhausted, Internal, LedgerDamaged, and Unavailable where
    another program holds the database.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        extended = getattr(error, "sqlite_errorcode", 0)
        failure = _FAILURES.get(extended & _PRIMARY_CODE)
        if extended == sqlite3.SQLITE_IOERR_SHMSIZE:
            failure = Failure.FULL
        if failure is None and str(error).startswith(_OF_DAMAGE):
            failure = Failure.DAMAGED
        if failure is None:
            raise
        code = getattr(error, "sqlite_errorname", "not UTF-8")
        if failure is not Failure.BUSY:
            event(log, f"{name} fails", logging.ERROR, reason=failure, error=str(error), sqlite=code)
            on_failure(failure)
        unchanged = (
            "nothing was changed" if name == layout.DATABASE else "what the ledger says stays, and files follow later"
        )
        match failure:
            case Failure.FULL:
                raise ResourceExhausted(f"the cache store's disk is full; {unchanged}", 5.0) from error
            case Failure.BUSY:
                raise Unavailable(f"another program holds {name}; try again") from error
            case Failure.DAMAGED:
                raise LedgerDamaged(f"a page ({error}, {code})") from error
            case Failure.IO_ERROR:
                raise Internal(
                    f"the cache store's disk fails ({error}, {code}); {unchanged}; look at the disk and at"
                    " the store's log, then try again"
                ) from error
