"""A data directory and its database, opened without changing a byte of them."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cache_service import checksums
from cache_service.files.directory import DataDirectory
from cache_service.files.directory_lock import DirectoryLock
from cache_service.offline.findings import CannotCheck

_WRITING = ("synchronous = FULL", "secure_delete = ON", "recursive_triggers = ON", "temp_store = MEMORY")


@contextmanager
def alone(directory: DataDirectory, *, creates: bool = True) -> Iterator[None]:
    """Keep stores out of the directory meanwhile. Raises CannotCheck if one is using it.

    Unlike DataDirectory.acquire it makes nothing but the lock, and that only if it `creates`.
    """
    try:
        lock = DirectoryLock(directory.root, creates=creates)
    except BlockingIOError as error:
        raise CannotCheck(
            f"a store is using {directory.root}; stop it (Ctrl-C in `agentmem up`), then run this again"
        ) from error
    except OSError as error:
        raise CannotCheck(f"cannot lock {directory.root}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.close()


@contextmanager
def reading(path: Path, *, beside: bool = True, is_ours: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write. A store may be running, unless it `is_ours`; what it commits is not seen.

    SQLite makes files to read a log that no process has open, `beside` the database. Raises CannotCheck where there is
    such a log and they may not be made, or cannot, on a disk that cannot be written to.
    """
    options, log = "mode=ro", path.with_name(f"{path.name}-wal")
    if is_ours or not beside or not os.access(path.parent, os.W_OK):
        if not log.exists() or not log.stat().st_size:
            options += "&immutable=1"  # else SQLite makes files beside it
        elif not beside:
            raise CannotCheck("its store was killed; the next start takes in what its log holds")
        elif not is_ours and not path.with_name(f"{path.name}-shm").exists():
            raise CannotCheck(
                f"{path.parent} cannot be written to, and SQLite cannot read {log.name} there; copy the directory to"
                " another disk, and name the copy"
            )
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, isolation_level=None)
    ) as connection:
        connection.execute("PRAGMA busy_timeout = 5000")
        yield connection


@contextmanager
def writing(path: Path, foreign_keys: bool = True) -> Iterator[sqlite3.Connection]:
    """One durable transaction that erases what it deletes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        checksums.register(connection)
        for pragma in (*_WRITING, f"foreign_keys = {foreign_keys:d}"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
