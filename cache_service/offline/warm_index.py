"""Checks of warm.db without a store."""

import sqlite3

from cache_service.files import warm_database
from cache_service.files.directory import DataDirectory
from cache_service.ledger import schema


def unusable(directory: DataDirectory) -> str:
    """Return why warm.db cannot be read, by its first page, or ""."""
    path = directory.warm_database
    if not path.exists():
        return "is missing"
    page = schema.first_page(path)
    if page is None:
        return "is no SQLite database any more" if path.stat().st_size else "is empty"
    if page.user_version != warm_database.VERSION:
        return f"is of version {page.user_version}, where this program reads {warm_database.VERSION}"
    return ""


def damage(warm: sqlite3.Connection) -> str:
    """Return what SQLite finds, or "". Reads all of it."""
    try:
        problem = str(warm.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        problem = str(error)
    return "" if problem == "ok" else f"is damaged ({' '.join(problem.split())})"
