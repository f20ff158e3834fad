"""Databases, opened without a store, and whether store.db is there and intact.

The store also calls `refuse_damaged` at start. A directory with files whose store.db is missing, empty or another one
is damaged: served as a new one, it would lose the files, although a mislaid store.db could be put back.
"""

import os
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cache_service.files.directory import DataDirectory, DirectoryLock
from cache_service.ledger import schema
from cache_service.ledger.database import DURABLE
from cache_service.offline.findings import CannotCheck, Finding, Report

IMPORTING = "store.db-importing"
"""A file that exists while ledgers are moved into a cluster."""
_MOST = 20
_WRITING = (*DURABLE, "secure_delete = ON", "recursive_triggers = ON", "temp_store = MEMORY")


class DatabaseDamaged(Exception):
    """store.db is lost or unreadable; the message says how to recover."""


@contextmanager
def alone(directory: DataDirectory, *, creates: bool = True) -> Iterator[None]:
    """Keep stores out of the directory. Raises CannotCheck if one is using it. Makes only the lock, if it `creates`."""
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
def new(directory: DataDirectory) -> Iterator[None]:
    """Hold a new directory; leave it as it was after an error. Raises CannotCheck, and DataDirectory.acquire's
    errors.
    """
    existed = directory.root.exists()
    if existed and (not directory.root.is_dir() or any(directory.root.iterdir())):
        raise CannotCheck(f"{directory.root} is not empty; choose a new directory")
    directory.acquire()
    try:
        directory.prepare()
        yield
    except BaseException:
        for path in directory.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not existed:
            directory.root.rmdir()
        raise
    finally:
        directory.release()


@contextmanager
def reading(path: Path, *, beside: bool = True, is_ours: bool = False) -> Iterator[sqlite3.Connection]:
    """Connect without writing. A store may be running, unless it `is_ours`.

    To read a log that no process has open, SQLite makes files `beside` the database. Raises CannotCheck.
    """
    options, log = "mode=ro", path.with_name(f"{path.name}-wal")
    if is_ours or not beside or not os.access(path.parent, os.W_OK):
        if not log.exists() or not log.stat().st_size:
            options += "&immutable=1"  # or SQLite makes files beside it
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
    """Run one durable transaction that erases what it deletes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in (*_WRITING, f"foreign_keys = {foreign_keys:d}"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def find(root: Path) -> DataDirectory:
    """Raises CannotCheck if it is no data directory, another version's, or without its store.db."""
    directory = DataDirectory(root)
    try:
        if lost := lost_by_names(directory):
            raise CannotCheck(f"{lost}. {lost_recovery(directory.database)}")
        if not directory.database.is_file():
            raise CannotCheck(f"{directory.root} has no store.db; name a store's data directory (its --data)")
        schema.refuse_newer(directory.database)
        if schema.is_older(directory.database):
            raise CannotCheck(f"an older agentmem made {directory.root}; start the store once, which brings it along")
    except (OSError, schema.SchemaTooNew, schema.ForeignDatabase) as error:
        raise CannotCheck(f"cannot open {directory.root}: {error}") from error
    return directory


def refuse_damaged(directory: DataDirectory) -> None:
    """Raise DatabaseDamaged unless the database is whole or never existed. Hold the directory's lock. Writes nothing.

    Reads the whole file, about a second for a gigabyte: commits to a damaged one would spread the damage.
    """
    path = directory.database
    if (importing := path.with_name(IMPORTING)).exists():
        raise DatabaseDamaged(
            f"{importing} has ledgers that are being moved into a cluster; nothing was changed. Run agentmem"
            f" cluster import {shlex.quote(str(path.parent))} again: it ends that, or says that nothing was moved"
        )
    lost = lost_by_names(directory)
    if not lost and path.exists():
        try:
            with reading(path, is_ours=True) as connection:
                problems = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
                if problems == ["ok"]:
                    lost = lost_by_id(directory, connection)
        except sqlite3.OperationalError:
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite quotes what is damaged
            problems = [str(error)]
        if problems != ["ok"]:
            raise DatabaseDamaged(
                f"{path} is damaged ({' '.join(problems[0].split())}); nothing was changed. {recovery(path)}"
            )
    if lost:
        raise DatabaseDamaged(f"{lost}; nothing was changed. {lost_recovery(path)}")


def lost_by_names(directory: DataDirectory) -> str:
    """Return how the ledger of the files is lost, by names, sizes and the first page, or ""."""
    path = directory.database
    if _size(path):
        page = schema.first_page(path)
        if page is None or page.has_tables:
            return ""
        what = "has no tables"
    else:
        what = "is empty" if path.exists() else "is missing"
        wal = path.with_name(f"{path.name}-wal")
        if _size(wal):
            return f"{path} {what}, but its log {wal.name} is there"
    return _beside_files(directory, what)


def lost_by_id(directory: DataDirectory, ledger: sqlite3.Connection) -> str:
    """Return `lost_by_names` if warm.db names other ledgers."""
    try:
        with reading(directory.warm_database, is_ours=True) as warm:
            named = warm.execute("SELECT ledgers FROM directory WHERE ledgers != ''").fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return ""
    is_theirs = not named or named == ledger.execute("SELECT ledger_id FROM ledger").fetchall()
    what = f"is not the one that {directory.warm_database.name} is of (if that was exchanged, delete warm.db)"
    return "" if is_theirs else _beside_files(directory, what)


def recovery(path: Path) -> str:
    old, new = shlex.quote(str(path.parent)), shlex.quote(f"{path.parent}-recovered")
    return (
        f"Copy what is readable into a new directory with: agentmem store recover {old} {new}"
        f" - and then start with --data {new}"
    )


def lost_recovery(path: Path) -> str:
    return (
        f"Put back the {path.name} that was there, with its {path.name}-wal if it had one, from wherever it was moved,"
        " or from a backup. If there is none, the files are of no use: choose another --data"
    )


def check(connection: sqlite3.Connection, path: Path, report: Report) -> bool:
    """Report what SQLite finds; return whether the tables can be trusted."""
    consequence = "the store refuses to start; ledgers on the damaged pages are lost"
    if damage := damages(connection):
        for problem in damage:
            report(Finding("database", path.name, problem, consequence, recovery(path)))
        return False
    dangling = connection.execute("PRAGMA foreign_key_check").fetchmany(_MOST)
    for table, row, parent, _ in dangling:
        where, problem = f"{path.name}, table {table}, row {row}", f"refers to a row of {parent} that does not exist"
        report(Finding("database", where, problem, "what the row stands for cannot be read", recovery(path)))
    return True


def damages(connection: sqlite3.Connection, most: int = _MOST) -> list[str]:
    """Return what SQLite finds."""
    try:
        found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({most})")]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        found = [str(error)]
    return [] if found == ["ok"] else [" ".join(each.split()) for each in found]


def _beside_files(directory: DataDirectory, what: str) -> str:
    files = sum(directory.path(name).is_file() for name in directory.published())
    return f"{directory.database} {what}, but there are {files} files of KV beside it" if files else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
