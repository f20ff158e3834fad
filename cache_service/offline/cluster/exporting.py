"""A cluster's ledgers, or those of one namespace, copied into a new directory on which a single machine can start.

The cluster is only read, in one consistent state. Files of KV and objects stay with it: they are computed again.
"""

import shutil
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agentmem.errors import AgentmemError
from cache_service.cluster import nodes
from cache_service.connection import Connection
from cache_service.files.directory import DataDirectory, DirectoryUnusable
from cache_service.files.disk import sync_directory
from cache_service.ledger.database import Database
from cache_service.ledger.postgres.settings import Settings
from cache_service.offline import ledgers, warm_index
from cache_service.offline.cluster import rows
from cache_service.offline.cluster.server import opened
from cache_service.offline.database import reading, writing
from cache_service.offline.findings import CannotCheck, Finding
from cache_service.offline.tree import Tree

_UNFINISHED: Final = "store.db-exporting"


@dataclass(frozen=True)
class Exported:
    """Rows of each table."""

    rows: Mapping[str, int] = field(default_factory=dict)


def take(root: Path, settings: Settings, namespace: str | None = None) -> Exported:
    """Make `root`, which is empty or not there, a directory with the ledgers. Its store.db appears when it is whole.

    Raises CannotCheck; then the directory is as it was.
    """
    directory = DataDirectory(root)
    existed = directory.root.exists()
    if existed and (not directory.root.is_dir() or any(directory.root.iterdir())):
        raise CannotCheck(f"{directory.root} is not empty; choose a new directory")
    unfinished = directory.root / _UNFINISHED
    try:
        directory.acquire()
        try:
            directory.prepare()
            with opened(settings) as postgres:
                copied = postgres.read_blocking(_copy, unfinished, namespace)
            _refuse_damaged(unfinished)
            with closing(sqlite3.connect(unfinished, isolation_level=None)) as new:
                new.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            warm_index.create(directory)
            unfinished.rename(directory.database)
            sync_directory(directory.root)
        except BaseException:
            _empty(directory.root, existed)
            raise
        finally:
            directory.release()
    except (DirectoryUnusable, AgentmemError) as error:
        raise CannotCheck(str(error)) from error
    except (OSError, sqlite3.Error) as error:
        raise CannotCheck(f"cannot export into {directory.root}: {error}") from error
    return Exported(copied.rows)


def _copy(ledger: Connection, path: Path, namespace: str | None) -> rows.Copied:
    """Write a new database; again from the beginning where the session was lost meanwhile."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
    database = Database(path)
    database.open()
    database.close()
    later = time.time_ns() - nodes.time(ledger)
    with writing(path) as store:
        return rows.copy(ledger, store, renumber=False, namespace=namespace, later=later)


def _refuse_damaged(path: Path) -> None:
    findings: list[Finding] = []
    with reading(path, is_ours=True) as store:
        ledgers.check(store, Tree(store), findings.append)
    if findings:
        raise CannotCheck(
            f"the cluster's ledgers have {len(findings)} faults ({findings[0].where}: {findings[0].problem}); nothing"
            " was exported; run: agentmem cluster check"
        )


def _empty(root: Path, existed: bool) -> None:
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not existed:
        root.rmdir()
