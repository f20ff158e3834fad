"""Copies what is readable of a damaged directory into a new one."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentmem.durable import sync, sync_directory
from agentmem.errors import AgentmemError
from cache_service.files import warm_database
from cache_service.files.directory import FOLDERS, DataDirectory, DirectoryUnusable
from cache_service.files.disk import open_private
from cache_service.ledger.database import Database
from cache_service.ledger.schema import ForeignDatabase, SchemaTooNew, refuse_newer
from cache_service.offline import states
from cache_service.offline.database import alone, new, writing
from cache_service.offline.findings import CannotCheck
from cache_service.offline.states import RecoveredAgent
from cache_service.offline.transfer import transfer
from cache_service.tiers import quotas

_COPY = "store.db-damaged"
_PAGE = 4096


@dataclass(frozen=True)
class Recovered:
    """`damaged` tables could not be read to their end."""

    agents: list[RecoveredAgent]
    workflow_records: int
    damaged: list[str]

    @property
    def is_whole(self) -> bool:
        return not self.damaged and all(agent.state == "whole" and not agent.lost_snapshots for agent in self.agents)


def recover(root: Path, new_root: Path) -> Recovered:
    """Make `new_root` a data directory of what is readable in `root`, where no store may be running.

    The next start finds owners of the linked KV files, and loads verify them. Raises CannotCheck if `new_root` is not
    empty, `root` is no data directory, a newer program's or in use, or nothing can be recovered; then `new_root` is
    unchanged.
    """
    source, target = DataDirectory(root), DataDirectory(new_root)
    if not source.database.is_file():
        raise CannotCheck(f"{source.root} has no store.db; name a store's data directory (its --data)")
    if source.root.resolve() in (target.root.resolve(), *target.root.resolve().parents):
        raise CannotCheck(f"{target.root} is in {source.root}, which is not written to; choose another new directory")
    try:
        refuse_newer(source.database)
        with alone(source, creates=False), new(target):
            return _recover(source, target)
    except (SchemaTooNew, ForeignDatabase, DirectoryUnusable, AgentmemError) as error:
        raise CannotCheck(str(error)) from error
    except OSError as error:
        raise CannotCheck(f"cannot recover: {error.filename or target.root}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise CannotCheck(f"nothing can be recovered: {error}") from error


def _recover(source: DataDirectory, target: DataDirectory) -> Recovered:
    try:
        for suffix in ("", "-wal"):
            _copy_readable(source.root / f"store.db{suffix}", target.root / f"{_COPY}{suffix}")
            _copy_readable(source.root / f"warm.db{suffix}", target.root / f"warm.db{suffix}")
        warm_database.discard_unusable(target.warm_database)
        if target.warm_database.exists():  # the new store.db has another id
            with writing(target.warm_database) as warm:
                warm.execute("UPDATE directory SET ledgers = ''")
        database = Database(target.database)
        database.open()
        database.close()
        with _damaged(target.root / _COPY) as damaged, writing(target.database, foreign_keys=False) as ledger:
            recovered = _rebuild(damaged, ledger)
        _link_files(source, target)
        return recovered
    finally:
        for path in target.root.glob(f"{_COPY}*"):
            path.unlink()


@contextmanager
def _damaged(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")  # read on after a malformed entry
        yield connection


def _rebuild(damaged: sqlite3.Connection, ledger: sqlite3.Connection) -> Recovered:
    found = transfer(damaged, ledger)
    kept = states.keep_newest(ledger, found.links)
    quotas.recount_ledgers(ledger)
    (records,) = ledger.execute("SELECT count(*) FROM workflow_records").fetchone()
    agents = [*(RecoveredAgent(key, "gone") for key in found.lost), *kept]
    if not records and all(agent.state == "gone" for agent in agents) and (agents or found.damaged):
        raise CannotCheck("nothing can be recovered: no ledger of the database holds together")
    return Recovered(sorted(agents, key=lambda agent: agent.key), records, found.damaged)


def _link_files(source: DataDirectory, target: DataDirectory) -> None:
    for folder in FOLDERS.values():
        for old in (source.root / folder).rglob("*"):
            if old.is_symlink() or not old.is_file():
                continue
            new = target.root / old.relative_to(source.root)
            new.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                if old.stat().st_mode & 0o777 != 0o600:
                    raise PermissionError
                os.link(old, new)
            except OSError:
                with suppress(PermissionError), open(old, "rb") as file, open_private(new) as copy:
                    shutil.copyfileobj(file, copy)
                    copy.flush()
                    sync(copy.fileno())
    for path in (target.root, *(each for each in target.root.rglob("*") if each.is_dir())):
        sync_directory(path)


def _copy_readable(source: Path, target: Path) -> None:
    """Copy a file, with zeros where the disk cannot read it."""
    if not source.exists():
        return
    with open(source, "rb", buffering=0) as old, open_private(target) as new:
        size = os.fstat(old.fileno()).st_size
        for start in range(0, size, _PAGE):
            try:
                data = os.pread(old.fileno(), _PAGE, start)
            except OSError:
                data = b""
            new.write(data.ljust(min(_PAGE, size - start), b"\0"))
