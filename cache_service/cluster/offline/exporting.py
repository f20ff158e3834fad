"""A cluster's ledgers, or those of one namespace, copied into a new directory."""

import sqlite3
import time
from pathlib import Path
from typing import Final

from agentmem.durable import sync_directory
from agentmem.errors import AgentmemError
from cache_service.cluster import nodes
from cache_service.cluster.offline import rows
from cache_service.cluster.offline.server import into_one_file, opened, refuse_faults
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from cache_service.files import warm_database
from cache_service.files.directory import DataDirectory, DirectoryUnusable
from cache_service.ledger.database import Database
from cache_service.offline.database import new, writing
from cache_service.offline.findings import CannotCheck

_UNFINISHED: Final = "store.db-exporting"


def take(root: Path, settings: Settings, namespace: str | None = None) -> dict[str, int]:
    """Make `root` a directory with the ledgers; return the numbers of rows by table. Its store.db appears when it is
    whole. Raises CannotCheck; then the directory is as it was.
    """
    directory = DataDirectory(root)
    unfinished = directory.root / _UNFINISHED
    try:
        with new(directory):
            with opened(settings) as postgres:
                copied = postgres.read_blocking(_copy, unfinished, namespace)
            refuse_faults(unfinished, f"the cluster's ledgers, in {directory.root},", "agentmem cluster check")
            into_one_file(unfinished)
            rows_of_files = Database(directory.warm_database, warm_database.prepare)
            rows_of_files.open()
            rows_of_files.close()
            unfinished.rename(directory.database)
            sync_directory(directory.root)
    except (DirectoryUnusable, AgentmemError) as error:
        raise CannotCheck(str(error)) from error
    except (OSError, sqlite3.Error) as error:
        raise CannotCheck(f"cannot export into {directory.root}: {error}") from error
    return copied


def _copy(ledger: Connection, path: Path, namespace: str | None) -> dict[str, int]:
    warm_database.discard(path)
    database = Database(path)
    database.open()
    database.close()
    later = time.time_ns() - nodes.time(ledger)
    with writing(path) as store:
        return rows.copy(ledger, store, renumber=False, namespace=namespace, later=later)
