"""`warm.db`: rows of one directory's files. Damaged or of another version it is made again of ledgers and files.

No transaction writes both databases: SQLite makes none atomic for two files, and the ledger may be a server's.
"""

import sqlite3
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Final

VERSION: Final = 4
"""Raise it with every change of warm.sql."""
_SCHEMA: Final = resources.files(__package__).joinpath("warm.sql").read_text(encoding="utf-8")


def prepare(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not version:
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # the first page has the version


def discard_unusable(path: Path) -> bool:
    """Return whether there was one."""
    if not path.exists() or _is_usable(path):
        return False
    discard(path)
    return True


def _is_usable(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            return bool(version == VERSION and connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError:
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False


def discard(path: Path) -> None:
    for suffix in ("-wal", "-shm", ""):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
