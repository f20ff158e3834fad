"""`warm.db`: the tables of what is true of one directory's files only, beside store.db, which says what agents are.

It is the index of a cache. Where it is missing, damaged or of another version it is made anew of ledgers and files (see
offline.adoption). No transaction writes both databases, and no statement reads both: SQLite makes a
transaction atomic for each file but not for two, and the ledger may be a server's. A change of both is two
transactions: see `holding`.
"""

import sqlite3
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Final

from agentmem.layout import WARM_DATABASE
from cache_service.files.disk import sync_directory

VERSION: Final = 1
"""A database of another version is not read: raise it with every change of warm.sql."""
_SCHEMA: Final = resources.files(__package__).joinpath("warm.sql").read_text(encoding="utf-8")
_MOVED: Final = ("files", "quarantined", "uploads")
_WARM: Final = "EXISTS (SELECT 1 FROM main.files AS f WHERE f.kind = r.kind AND f.chain_hash = r.chain_hash)"


def beside(database: Path) -> Path:
    """The warm.db that goes with a store.db, which may have another name in a copy."""
    return database.with_name(WARM_DATABASE)


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of a new database. Raises sqlite3.Error."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not version:
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")


def discard_unusable(path: Path) -> bool:
    """Delete a database that is damaged or of another version; whether there was one. Raises OSError, sqlite3.Error."""
    if not path.exists() or _is_usable(path):
        return False
    discard(path)
    return True


def take_over(ledger: sqlite3.Connection, path: Path) -> None:
    """Make a new warm.db of the tables that schema 3 has in store.db, durably.

    It is done again where a crash came before these are dropped there. Raises OSError, sqlite3.Error.
    """
    discard(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as new:
        path.chmod(0o600)
        for pragma in ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "secure_delete = ON"):
            new.execute(f"PRAGMA {pragma}")
        prepare(new)
    ledger.execute("ATTACH ? AS warm", (str(path),))
    try:
        ledger.execute("BEGIN IMMEDIATE")
        for table in _MOVED:
            names = ", ".join(row[1] for row in ledger.execute(f"PRAGMA warm.table_info({table})"))
            ledger.execute(f"INSERT INTO warm.{table} ({names}) SELECT {names} FROM main.{table}")
        ledger.execute(
            "INSERT INTO warm.evicted (uid, namespace, kind, chain_hash)"
            " SELECT uid, a.namespace, kind, chain_hash FROM main.evicted JOIN main.agents AS a USING (uid)"
        )
        ledger.execute(
            "INSERT INTO warm.held (uid, snapshot, kind, chain_hash)"
            f" SELECT uid, 0, kind, chain_hash FROM main.refs AS r WHERE warm AND {_WARM} UNION ALL"
            " SELECT s.uid, s.id, kind, chain_hash FROM main.snapshot_refs AS r"
            f" JOIN main.snapshots AS s ON s.id = r.snapshot WHERE warm AND {_WARM}"
        )
        ledger.execute("INSERT INTO warm.published (uid, version) SELECT uid, published_version FROM main.agents")
        ledger.execute("INSERT INTO warm.uploading (id) SELECT 1 FROM main.remote_place WHERE uploading")
        ledger.execute("COMMIT")
        ledger.execute("PRAGMA warm.wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        if ledger.in_transaction:
            ledger.execute("ROLLBACK")
        ledger.execute("DETACH warm")
    sync_directory(path.parent)


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
    """Delete a database, with its log. Raises OSError."""
    for suffix in ("-wal", "-shm", ""):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
