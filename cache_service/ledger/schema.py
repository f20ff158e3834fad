"""The tables of `store.db`, and how a directory of an older version becomes one of this version.

`PRAGMA user_version` counts the scripts of `migrations/` that were applied. A published script never changes; a change
is a new script at the end. Which version a file has is read from its first page, without SQLite, which would write
beside it to read its WAL.
"""

import sqlite3
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from cache_service import checksums
from cache_service.checksums import LedgerDamaged
from cache_service.files import warm_database

MIGRATIONS = tuple(
    path.read_text(encoding="utf-8")
    for path in sorted(resources.files(__package__).joinpath("migrations").iterdir(), key=lambda path: path.name)
    if path.name.endswith(".sql")
)
"""The scripts of `migrations/`, in the order of their numbers."""

_TO_WARM_DATABASE = 4
"""The script before which rows of files are copied to warm.db."""
_MAGIC = b"SQLite format 3\0"
_HEADER, _FRAME_HEADER = 32, 24
_SALTS = slice(16, 24)  # of the header of a WAL; a frame of an earlier use of the file has others at 8:16


class SchemaTooNew(Exception):
    """A newer version of Agentmem wrote this directory; the message says so."""


class ForeignDatabase(Exception):
    """The database is another program's; the message says what to do."""


class FirstPage(NamedTuple):
    """What the first page says: `PRAGMA user_version`, and whether there is any table."""

    user_version: int
    has_tables: bool


def refuse_newer(path: Path) -> None:
    """Raise SchemaTooNew for the database of a newer program, and ForeignDatabase for one of another.

    Nothing is written, not even beside it, and no file need be there. Raises OSError.
    """
    page = first_page(path)
    if page is None:
        return
    if page.user_version > len(MIGRATIONS):
        raise SchemaTooNew(_too_new(page.user_version))
    if page.user_version == 0 and page.has_tables:
        raise ForeignDatabase(f"{path} is another program's database; choose a directory of its own as --data")


def is_older(path: Path) -> bool:
    """Whether an older program wrote the database, and no store has brought it to this version yet."""
    page = first_page(path)
    return page is not None and page.user_version < len(MIGRATIONS)


def prepare(connection: sqlite3.Connection) -> None:
    """Bring the database to this version, and look whether it hides an agent.

    Raises SchemaTooNew, LedgerDamaged, OSError, sqlite3.Error.
    """
    migrate(connection)
    # Whom a damaged index hides must not begin anew. It takes microseconds an agent.
    if (found := connection.execute("PRAGMA integrity_check(agents)").fetchone()) != ("ok",):
        raise LedgerDamaged(f"the table of agents ({found[0]})")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the database to this version, in one transaction per script.

    Raises SchemaTooNew, OSError, sqlite3.Error.
    """
    checksums.register(connection)
    (applied,) = connection.execute("PRAGMA user_version").fetchone()
    if applied > len(MIGRATIONS):
        raise SchemaTooNew(_too_new(applied))
    for number, script in enumerate(MIGRATIONS[applied:], start=applied + 1):
        if number == _TO_WARM_DATABASE and applied:
            path = connection.execute("PRAGMA database_list").fetchone()[2]
            warm_database.take_over(connection, warm_database.beside(Path(path)))
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")


def first_page(path: Path) -> FirstPage | None:
    """Read the first page of the database at `path`, as it was last committed; None if there is no such database.

    Raises OSError.
    """
    page = _in_wal(path.with_name(f"{path.name}-wal")) or _in_file(path)
    if not page.startswith(_MAGIC) or len(page) < 108:
        return None
    is_empty = page[100] == 0x0D and page[103:105] == bytes(2)  # a leaf without a cell
    return FirstPage(int.from_bytes(page[60:64], "big"), not is_empty)


def _too_new(applied: int) -> str:
    return f"its schema has version {applied}, this program knows {len(MIGRATIONS)}; use a newer agentmem"


def _in_file(path: Path) -> bytes:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read(512)
    return b""


def _in_wal(path: Path) -> bytes:
    """The page as the last transaction that changed it left it; empty if none did."""
    found = written = b""
    with suppress(FileNotFoundError), open(path, "rb") as wal:
        header = wal.read(_HEADER)
        size = int.from_bytes(header[8:12], "big")
        while len(frame := wal.read(_FRAME_HEADER)) == _FRAME_HEADER and frame[8:16] == header[_SALTS]:
            page = wal.read(size)
            if len(page) < size:
                break
            if frame[:4] == b"\0\0\0\1":
                written = page
            if frame[4:8] != bytes(4):  # the transaction's last frame
                found = written
    return found
