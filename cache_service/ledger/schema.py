"""The tables of `store.db`, and migration of older versions by `PRAGMA user_version`.

A published script never changes; a change is a new script at the end. The version is read from the first page, because
SQLite would write beside the file to read its WAL.
"""

import sqlite3
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

from cache_service.damage import LedgerDamaged


def read_script(name: str, package: str = __package__) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


TABLES: Final = read_script("tables.sql")
"""Both engines'."""
FIRST: Final = 8
"""The first script's version. Older directories are refused."""
SCRIPTS: Final = (TABLES + read_script("sqlite.sql"),)
"""Each makes the next version."""
_MAGIC = b"SQLite format 3\0"


class SchemaTooNew(Exception):
    """A newer Agentmem wrote this directory."""


class ForeignDatabase(Exception):
    """The database is another program's, or too old; the message says what to do."""


class FirstPage(NamedTuple):
    """The first page's `PRAGMA user_version`, and whether there is any table."""

    user_version: int
    has_tables: bool


def version() -> int:
    """Return the version that this program makes."""
    return FIRST + len(SCRIPTS) - 1


def refuse_newer(path: Path) -> None:
    """Raise SchemaTooNew or ForeignDatabase for a database of others. Writes nothing. Raises OSError."""
    if (page := first_page(path)) is None:
        return
    _refuse(page.user_version, str(path))
    if page.user_version == 0 and page.has_tables:
        raise ForeignDatabase(f"{path} is another program's database; choose a directory of its own as --data")


def is_older(path: Path) -> bool:
    """Return whether the database has an older version."""
    page = first_page(path)
    return page is not None and page.user_version < version()


def prepare(connection: sqlite3.Connection) -> None:
    """Bring the database to this version, and check the index of agents.

    Raises SchemaTooNew, ForeignDatabase, LedgerDamaged, OSError, sqlite3.Error.
    """
    migrate(connection)
    # An agent that a damaged index hides must not begin again. Takes microseconds an agent.
    if (found := connection.execute("PRAGMA integrity_check(agents)").fetchone()) != ("ok",):
        raise LedgerDamaged(f"the table of agents ({found[0]})")


def migrate(connection: sqlite3.Connection) -> None:
    """Run a transaction per script. Raises SchemaTooNew, ForeignDatabase, OSError, sqlite3.Error."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    _refuse(found, "the database")
    applied = found - FIRST + 1 if found else 0
    for number, each in enumerate(SCRIPTS[applied:], start=FIRST + applied):
        run(connection, each, number)


def run(connection: sqlite3.Connection, statements: str, number: int) -> None:
    """Run a script as one transaction that makes version `number`, also in the file's first page, unless another
    program is reading. Raises sqlite3.Error.
    """
    connection.executescript(f"BEGIN IMMEDIATE; {statements} PRAGMA user_version = {number}; COMMIT;")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def first_page(path: Path) -> FirstPage | None:
    """Read a database's first page; None if there is none. Raises OSError."""
    page = b""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        page = file.read(512)
    if not page.startswith(_MAGIC) or len(page) < 108:
        return None
    is_empty = page[100] == 0x0D and page[103:105] == bytes(2)  # a leaf without a cell
    return FirstPage(int.from_bytes(page[60:64], "big"), not is_empty)


def too_old(what: str, found: int, elsewhere: str) -> ForeignDatabase:
    """Return the refusal of older tables; `elsewhere` is where to make new ones."""
    return ForeignDatabase(
        f"{what} has schema {found}, of an agentmem before this one, which reads {FIRST} and newer; nothing was"
        f" changed. Choose {elsewhere}, or go on with the agentmem that made it"
    )


def _refuse(found: int, what: str) -> None:
    if found > version():
        raise SchemaTooNew(f"its schema has version {found}, this program knows {version()}; use a newer agentmem")
    if 0 < found < FIRST:
        raise too_old(what, found, "another --data")
