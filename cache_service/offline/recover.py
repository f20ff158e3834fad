"""Copying what is readable of a damaged directory into a new one. The damaged one is not written to."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import FileName
from cache_service.files.directory import DataDirectory, DirectoryUnusable
from cache_service.files.disk import open_private
from cache_service.files.references import FileOrigin, FileRow
from cache_service.ledger.database import Database
from cache_service.ledger.schema import ForeignDatabase, SchemaTooNew, refuse_newer
from cache_service.offline import adoption, linking, states, warm_index
from cache_service.offline.database import alone, lost_by_names, lost_by_rows, writing
from cache_service.offline.findings import CannotCheck
from cache_service.offline.states import RecoveredAgent
from cache_service.offline.transfer import readable_files, transfer
from cache_service.tiers import quotas

_COPY, _WARM_COPY = "store.db-damaged", "warm.db-damaged"
_PAGE = 4096


@dataclass(frozen=True)
class Recovered:
    """What was recovered. `damaged` are the tables that could not be read to their end."""

    agents: list[RecoveredAgent]
    workflow_records: int
    damaged: list[str]
    unclaimed_files: int | None = None
    """Where the ledgers are lost, with store.db: files of KV that are whole, kept without an owner. Otherwise None."""

    @property
    def is_whole(self) -> bool:
        """Whether no ledger and no record is lost."""
        return (
            not self.damaged
            and self.unclaimed_files is None
            and all(agent.state == "whole" and not agent.lost_snapshots for agent in self.agents)
        )


def recover(root: Path, new_root: Path) -> Recovered:
    """Make `new_root` a data directory of what is readable in `root`, where no store may be running.

    Where store.db is lost, that is the files of KV: who sends a prompt that they begin need not have it computed again.

    Raises CannotCheck if `new_root` holds something, or `root` is no data directory, or a newer program's, or a store
    is using it, or nothing can be recovered; then `new_root` is as it was.
    """
    source, target = DataDirectory(root), DataDirectory(new_root)
    if not source.database.is_file() and not lost_by_names(source):
        raise CannotCheck(f"{source.root} has no store.db; name a store's data directory (its --data)")
    if source.root.resolve() in (target.root.resolve(), *target.root.resolve().parents):
        raise CannotCheck(f"{target.root} is in {source.root}, which is not written to; choose another new directory")
    try:
        refuse_newer(source.database)
        with alone(source, creates=False), _new(target):
            return _recover(source, target)
    except (SchemaTooNew, ForeignDatabase, DirectoryUnusable, AgentmemError) as error:
        raise CannotCheck(str(error)) from error
    except OSError as error:
        raise CannotCheck(f"cannot recover: {error.filename or target.root}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise CannotCheck(f"nothing can be recovered: {error}") from error


@contextmanager
def _new(directory: DataDirectory) -> Iterator[None]:
    """The new directory, held; emptied again, or removed, if it does not come to be."""
    existed = directory.root.exists()
    if existed and (not directory.root.is_dir() or any(directory.root.iterdir())):
        raise CannotCheck(f"{directory.root} is not empty; choose a new directory")
    directory.acquire()
    try:
        directory.prepare()
        yield
    except BaseException:
        for path in directory.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not existed:
            directory.root.rmdir()
        raise
    finally:
        directory.release()


def _recover(source: DataDirectory, target: DataDirectory) -> Recovered:
    try:
        for suffix in ("", "-wal"):
            _copy_readable(source.root / f"store.db{suffix}", target.root / f"{_COPY}{suffix}")
            _copy_readable(source.root / f"warm.db{suffix}", target.root / f"{_WARM_COPY}{suffix}")
        database = Database(target.database)
        database.open()
        database.close()
        warm_index.create(target)
        with (
            _damaged(target.root / _COPY) as damaged,
            writing(target.database, foreign_keys=False) as ledger,
            writing(target.warm_database) as warm,
        ):
            return _rebuild(source, target, damaged, ledger, warm)
    finally:
        for copy in (_COPY, _WARM_COPY):
            for path in target.root.glob(f"{copy}*"):
                path.unlink()


@contextmanager
def _damaged(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")  # read on behind an entry that makes no sense
        yield connection


def _rebuild(
    source: DataDirectory,
    target: DataDirectory,
    damaged: sqlite3.Connection,
    ledger: sqlite3.Connection,
    warm: sqlite3.Connection,
) -> Recovered:
    ledger.execute("UPDATE data_directory SET has_published = 1")
    if _is_lost(source, damaged):
        unclaimed_files = linking.link_unclaimed(source, target, warm)
        if not unclaimed_files:
            raise CannotCheck("nothing can be recovered: the ledgers are lost, and no file of KV is whole")
        return Recovered([], 0, [], unclaimed_files)
    found = transfer(damaged, ledger)
    kept = states.keep_newest(ledger, found.links)
    files = linking.link(source, target, ledger, warm, _files(source, target, damaged))
    quotas.recount_ledgers(ledger)
    (records,) = ledger.execute("SELECT count(*) FROM workflow_records").fetchone()
    agents = [RecoveredAgent(key, "gone") for key in found.lost]
    for each in kept:
        whole, lost = files.get(each.key, (0, 0))
        agents.append(replace(each, files=whole, lost_files=lost))
    if found.damaged and not records and all(agent.state == "gone" for agent in agents):
        raise CannotCheck("nothing can be recovered: no ledger of the database holds together")
    return Recovered(sorted(agents, key=lambda agent: agent.key), records, found.damaged)


def _files(
    source: DataDirectory, target: DataDirectory, damaged: sqlite3.Connection
) -> Iterator[tuple[FileRow, FileOrigin]]:
    """Published files: by their rows, in warm.db or in a store.db of before it; others by what is in them."""
    known: set[FileName] = set()
    with _damaged(target.root / _WARM_COPY) as damaged_warm:
        for connection in (damaged, damaged_warm):
            for row, origin in readable_files(connection):
                if row.name not in known:
                    known.add(row.name)
                    yield row, origin
    yield from adoption.described(source, known)


def _is_lost(source: DataDirectory, damaged: sqlite3.Connection) -> bool:
    """Whether there is no database of the files of KV. One that is damaged may be theirs."""
    with suppress(sqlite3.DatabaseError):
        return bool(lost_by_names(source) or lost_by_rows(source, damaged))
    return False


def _copy_readable(source: Path, target: Path) -> None:
    """Copy a file, with zeros where the disk cannot read it; nothing if it is not there."""
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
