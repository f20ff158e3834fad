"""The tables of `store.db`, and how a directory of an older version becomes one of this version.

`PRAGMA user_version` counts the scripts of `migrations/` that were applied. A published script never changes; a change
is a new script at the end. Texts are compared bytewise (SQLite's BINARY collation), times are nanoseconds since 1970.
"""

import sqlite3
from importlib import resources
from pathlib import Path

from cache_service import checksums, first_page

MIGRATIONS = tuple(
    path.read_text(encoding="utf-8")
    for path in sorted(resources.files("cache_service.migrations").iterdir(), key=lambda path: path.name)
    if path.name.endswith(".sql")
)
"""The scripts of `migrations/`, in the order of their numbers."""


class SchemaTooNew(Exception):
    """A newer version of Agentmem wrote this directory; the message says so."""


class ForeignDatabase(Exception):
    """The database is another program's; the message says what to do."""


def refuse_newer(path: Path) -> None:
    """Raise SchemaTooNew for the database of a newer program, and ForeignDatabase for one of another.

    Nothing is written, not even beside it, and no file need be there. Raises OSError.
    """
    page = first_page.read(path)
    if page is None:
        return
    if page.user_version > len(MIGRATIONS):
        raise SchemaTooNew(_too_new(page.user_version))
    if page.user_version == 0 and page.has_tables:
        raise ForeignDatabase(f"{path} is another program's database; choose a directory of its own as --data")


def is_older(path: Path) -> bool:
    """Whether an older program wrote the database, and no store has brought it to this version yet."""
    page = first_page.read(path)
    return page is not None and page.user_version < len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the database to this version, in one transaction per script. Raises SchemaTooNew."""
    checksums.register(connection)
    (applied,) = connection.execute("PRAGMA user_version").fetchone()
    if applied > len(MIGRATIONS):
        raise SchemaTooNew(_too_new(applied))
    for number, script in enumerate(MIGRATIONS[applied:], start=applied + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")


def _too_new(applied: int) -> str:
    return f"its schema has version {applied}, this program knows {len(MIGRATIONS)}; use a newer agentmem"
