"""Files of KV whose ledger is lost: store.db is missing, or empty, or not the one that published them.

Such a directory is damaged and not new. Served as a new one it would lose the files as orphans, and with them what an
operator who has mislaid store.db could still put right. A directory where nothing was ever published is new, whatever
a first start that was interrupted, or a worker's writing, has left in it.
"""

import sqlite3
from pathlib import Path

from cache_service import first_page
from cache_service.files import FOLDERS, DataDirectory

_WAS_USED = (
    "SELECT EXISTS (SELECT 1 FROM files) OR EXISTS (SELECT 1 FROM quarantined) OR EXISTS (SELECT 1 FROM segments)"
    " OR EXISTS (SELECT 1 FROM workflow_records) OR EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'segments')"
)
"""Whether there is anything in the database, or was: SQLite keeps the last id of a segment."""


def by_names(directory: DataDirectory) -> str:
    """How the ledger of what lies in the directory is lost, as far as names and first pages show it; "" if it is not.

    Reads names, sizes and the first page. Raises OSError.
    """
    path = directory.database
    if _size(path):
        page = first_page.read(path)
        if page is None or page.has_tables:
            return ""
        what = "has no tables"
    else:
        what = "is empty" if path.exists() else "is missing"
        wal = path.with_name(f"{path.name}-wal")
        if _size(wal):
            return f"{path} {what}, but its log {wal.name} is there"
    return _beside_files(directory, what)


def by_rows(directory: DataDirectory, connection: sqlite3.Connection) -> str:
    """Likewise, by what the database says of itself. Raises sqlite3.Error and OSError."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"files", "quarantined", "segments", "workflow_records"} & tables:
        return _beside_files(directory, "lacks its tables")
    used, noted = connection.execute(_WAS_USED).fetchone()[0], None
    if "data_directory" in tables:  # not in a database of an older version
        noted = connection.execute("SELECT has_published FROM data_directory").fetchone()
    return "" if used or (noted and noted[0]) else _beside_files(directory, "is new")


def note_published(connection: sqlite3.Connection) -> None:
    """Files will be published from now on. Commit it before the first of them is in its place."""
    connection.execute("UPDATE data_directory SET has_published = 1")


def _beside_files(directory: DataDirectory, what: str) -> str:
    files = sum(directory.path(name).is_file() for name in directory.published())
    files += sum(path.is_file() for folder in FOLDERS.values() for path in directory.quarantine.glob(f"{folder}-*"))
    return f"{directory.database} {what}, but there are {files} files of KV beside it" if files else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
