"""Files and their rows, moved together on one thread, whether or not the caller goes away.

A file gets its row last and loses it first: a crash in between leaves a file without a row, which `reconcile` deletes.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from agentmem.errors import AgentmemError, DataLoss, Internal, InvalidArgument, NotFound
from agentmem.kv.blockfile import BlockFileError, FileName
from agentmem.process.logs import event
from agentmem.tracing import Threads
from agentmem.validation import AgentKey
from cache_service.connection import Connection
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import disk_errors
from cache_service.files.holding import Standing
from cache_service.files.publication import Publication, Published, Staged, verify
from cache_service.files.references import Dropped, FileRow
from cache_service.ledger import agents, kv_changes, object_references
from cache_service.ledger.clock import LedgerClock
from cache_service.ledger.ledgers import Ledgers, Query
from cache_service.metrics import StoreMetrics
from cache_service.tiers import objects
from cache_service.tiers.objects import Object
from cache_service.tiers.warm import WarmTier
from cache_service.tiers.warm_rows import WarmRows

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _on_thread_of_files(
    method: Callable[Concatenate["BlockStore", _P], _T],
) -> "Callable[Concatenate[BlockStore, _P], Future[_T]]":
    """Queue a call for the thread of files."""

    @wraps(method)
    def submit(self: "BlockStore", /, *args: _P.args, **kwargs: _P.kwargs) -> "Future[_T]":
        def work() -> _T:
            self._directory.removal.again()
            with disk_errors():
                return method(self, *args, **kwargs)

        return self._thread.submit(work)

    return submit


@dataclass(eq=False)
class BlockStore:
    """Close it before the database."""

    _directory: DataDirectory
    _database: Ledgers
    _rows: WarmRows
    _clock: LedgerClock
    _metrics: StoreMetrics
    _warm: WarmTier

    def __post_init__(self) -> None:
        self.is_behind = False
        self._has_failed = False
        """The last erasure could not be finished."""
        self.on_held: Callable[[Iterable[FileName]], None] = lambda _: None
        """Called with files that are held from now on."""
        self._thread = Threads(1, thread_name_prefix="files")

    def reconcile(self) -> None:
        """Empty staging/, delete files without a row and rows without a file. Blocks; before serving."""
        self._rows.reconcile()
        swept = self._directory.sweep_staging()
        found = set(self._directory.published())
        rows = set(self._rows.read_blocking(references.all_names))
        self._directory.remove(found - rows)
        if missing := rows - found:
            self._rows.change(references.forget, names=missing)
        self._warm.start()
        files, orphans = len(rows & found), len(found - rows)
        event(log, "data directory swept", staged=swept, files=files, orphans=orphans, missing=len(missing))

    @_on_thread_of_files
    def stage(self, namespace: str, names: Iterable[FileName]) -> list[tuple[FileName, Path]]:
        """Return paths for those of `names` that don't exist. Raises ResourceExhausted."""
        self._follow()  # what is gone is not found
        asked = list(dict.fromkeys(names))
        rows = {row.name for row in self._rows.read_blocking(references.find, namespace=namespace, names=asked)}
        if vanished := {name for name in rows if not self._directory.has(name)}:
            event(log, "files have vanished", logging.WARNING, files=len(vanished))
            self._rows.change(references.forget, names=vanished)
        missing = [name for name in asked if name not in rows - vanished]
        if missing:
            self._warm.admit(namespace)
        return [(name, self._directory.new_staging_path(name)) for name in missing]

    @_on_thread_of_files
    def publish(self, publication: Publication) -> Published:
        """Verify, place and register files; then replace the agent's references and delete what they alone held.

        Raises InvalidArgument for a path outside staging/, before anything is done; DataLoss that names the files that
        failed, after the others were published; ResourceExhausted.
        """
        for index, staged in enumerate(publication.staged):
            if not self._directory.is_staged(staged.path):
                raise InvalidArgument(f"files[{index}].path", "must be a path that StageBlocks gave")
        self._follow()  # no duplicate of what is gone is dropped
        if not self._database.read_blocking(agents.may_publish, publication.version.uid):
            self._discard(publication)
            return Published(0, len(publication.staged))
        placed: dict[FileName, FileRow] = {}
        refused: list[str] = []
        dropped = 0
        try:
            for staged in publication.staged:
                name = staged.file.name
                if name in placed or self._found(publication.key.namespace, name):
                    self._directory.removal.remove([staged.path])
                    dropped += 1
                    continue
                try:
                    placed[name] = self._verify_and_place(staged, publication)
                except BlockFileError as error:
                    self._directory.removal.remove([staged.path])
                    refused.append(f"{name.chain_hash.hex()} ({error})")
            self._directory.sync(placed)
            registered = self._rows.change(self._register, publication, placed, self._clock.time())
        except BaseException:
            self._directory.remove(placed)
            self._discard(publication)
            raise
        if registered is None:
            self._directory.remove(placed)
            return Published(0, len(publication.staged))
        gone, held = registered
        self._directory.remove(gone)
        self.on_held(held)
        self._let_objects_go(publication)
        self._enforce_limits(publication, list(placed))
        if refused:
            raise DataLoss(f"{len(refused)} staged files failed verification and were deleted: {'; '.join(refused)}")
        return Published(len(placed), dropped)

    @_on_thread_of_files
    def quarantine(self, namespace: str, name: FileName, digest: bytes | None, reason: str) -> None:
        """Delete a damaged file, if it still has this digest; or only drop its row."""
        is_there = self._directory.has(name)
        found = self._rows.change(references.drop_damaged, namespace, name, digest if is_there else None)
        if found is None or not is_there:
            return
        self._metrics.quarantined(reason)
        hashes = {"chain_hash": name.chain_hash.hex(), "digest": found[0].hex()}
        event(log, "damaged file deleted", logging.WARNING, **hashes, reason=reason, size_bytes=found[1])
        self._directory.remove([name])

    @_on_thread_of_files
    def adopt(self, each: Object, staged: Path) -> FileRow | None:
        """Publish a file that came back; None without a use for it. Raises BlockFileError, ResourceExhausted."""
        namespace, name = each.file.key.namespace, each.file.name
        if present := self._found(namespace, name):
            return present
        verify(Staged(each.file, staged), each.file.key, each.file.fingerprint)
        adopted = False
        try:
            self._directory.place(staged, name)
            self._directory.sync([name])
            adopted = self._rows.change(self._readmit, each, self._clock.time())
        finally:
            if not adopted:
                self._directory.remove([name])
        self._warm.enforce(namespace=namespace)
        return each.file if adopted else None

    @_on_thread_of_files
    def admit(self, namespace: str) -> None:
        """Raises ResourceExhausted."""
        self._warm.admit(namespace)

    @_on_thread_of_files
    def evict_agent(self, key: AgentKey, *, objects: bool) -> int:
        """Return the bytes freed of the disk. Raises NotFound."""
        return self._warm.evict_agent(key, objects=objects).freed_bytes

    @_on_thread_of_files
    def make_room(self, namespace: str) -> None:
        self._warm.make_room(namespace)

    @_on_thread_of_files
    def follow(self) -> None:
        self._follow()

    @_on_thread_of_files
    def follow_anew(self) -> None:
        """See WarmRows.reconcile."""
        self._rows.reconcile()

    @property
    def is_erasing(self) -> bool:
        """Return whether an erasure has failed, and its bytes may still be on the disk."""
        return self._has_failed and self._owes_scrub

    @property
    def _owes_scrub(self) -> bool:
        return self._database.scrub_owed or self._rows.scrub_owed or self._directory.removal.left > 0

    async def erase(self, work: Query[Connection, _P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Run `work` as a transaction that erases; then nothing of it stays on the disk.

        Raises as Database.scrub, and Internal where files stay: repeat it; NotFound only if none has failed.
        """
        unfinished, missing = self.is_erasing, None
        try:
            await asyncio.wrap_future(self._database.erase(lambda _: True, work, *args, **kwargs))
        except NotFound as error:
            missing = error
        if missing is None or self._owes_scrub:
            await self._finish_erasure()
        if missing is not None and not unfinished:
            raise missing

    async def delete_agent(self, key: AgentKey) -> Dropped:
        """Return what this call erased. Raises as `erase`."""
        deleted = await asyncio.wrap_future(self._delete_agent(key))
        await self._finish_erasure()  # also without an agent: a turn that was not committed may have left files
        return deleted

    async def upkeep(self, now: int) -> None:
        await asyncio.wrap_future(self._keep_limits(now))
        for database in (self._database, self._rows):
            if database.scrub_owed:
                await asyncio.wrap_future(database.scrub(patient=False))

    def close(self) -> None:
        self._thread.shutdown()

    @_on_thread_of_files
    def _delete_agent(self, key: AgentKey) -> Dropped:
        count = self._database.erase(lambda _: True, _erase, key).result()
        dropped = Dropped()
        with suppress(AgentmemError, sqlite3.Error):  # it is tried again, and raises there
            dropped = self._rows.follow(erase=True)
        return replace(dropped, agents=count)

    async def _finish_erasure(self) -> None:
        try:
            await asyncio.wrap_future(self._follow_erasure())
            if self._rows.scrub_owed:
                await asyncio.wrap_future(self._rows.scrub())
            await asyncio.wrap_future(self._database.scrub())
        except BaseException:
            self._has_failed = True
            raise
        self._has_failed = False

    @_on_thread_of_files
    def _follow_erasure(self) -> None:
        self._rows.follow(erase=True)
        if kept := self._directory.removal.left:
            raise Internal(
                f"the cache store's disk fails: {kept} files of what was deleted are still on it; they are out of use,"
                " and deleted as soon as it works again; look at the disk and at the store's log"
            )

    @_on_thread_of_files
    def _keep_limits(self, now: int) -> None:
        if swept := self._directory.sweep_abandoned():
            event(log, "what was staged and never published is deleted", logging.WARNING, files=swept)
        self._rows.follow()
        self._rows.forget_followed()
        self._warm.expire(now)
        self._warm.enforce_quotas()
        if not self._warm.enforce():
            self._warm.enforce("")

    def _follow(self) -> None:
        self.is_behind = True
        try:
            self._rows.follow()
            self.is_behind = False
        except (AgentmemError, sqlite3.Error) as error:
            event(log, "files follow the ledger later", logging.WARNING, error=str(error))

    def _enforce_limits(self, publication: Publication, names: Sequence[FileName]) -> None:
        namespace, uid = publication.key.namespace, publication.version.uid
        try:
            within_limits = self._warm.enforce(uid, namespace)
        except AgentmemError as error:  # the next upkeep makes room
            event(log, "no room made", logging.ERROR, error=error.message)
            return
        if names and not within_limits:
            refusal = self._warm.refusal(namespace)
            self._directory.remove(self._rows.change(self._withdraw, publication, frozenset(names)))
            if refusal is not None:
                raise refusal

    def _found(self, namespace: str, name: FileName) -> FileRow | None:
        found = self._rows.read_blocking(references.find, namespace, [name])
        return found[0] if found and self._directory.has(name) else None

    def _verify_and_place(self, staged: Staged, publication: Publication) -> FileRow:
        name = staged.file.name
        file = verify(staged, publication.key, publication.fingerprint)
        owner = self._rows.read_blocking(references.namespace_of, name=name)
        if owner not in (None, publication.key.namespace):
            raise BlockFileError("header", "the chain hash is another namespace's")
        self._directory.place(staged.path, name)
        return file

    def _register(
        self,
        connection: sqlite3.Connection,
        publication: Publication,
        placed: Mapping[FileName, FileRow],
        now: int,
    ) -> tuple[list[FileName], set[FileName]] | None:
        """Return the files that nobody holds now, and those that are held from now on; None if the agent is gone.

        The ledger is asked within this transaction of warm.db: a later erasure is followed by a later one.
        """
        key, version = publication.key, publication.version
        standing = self._standing(connection, publication)
        if not standing.exists:
            return None
        for file in placed.values():
            references.add(connection, file, now)
        adds = publication.references is None
        names = publication.references if publication.references is not None else frozenset(placed)
        return holding.publish(connection, key, version, names, standing, adds=adds)

    def _withdraw(
        self, connection: sqlite3.Connection, publication: Publication, names: frozenset[FileName]
    ) -> list[FileName]:
        kept = self._standing(connection, publication).kept
        return holding.withdraw(connection, publication.key.namespace, publication.version, names, kept)

    def _standing(self, connection: sqlite3.Connection, publication: Publication) -> Standing:
        followed = holding.followed(connection)
        return self._database.read_blocking(kv_changes.standing, publication.key, publication.version, followed)

    def _let_objects_go(self, publication: Publication) -> None:
        version, names = publication.version, publication.references
        if names is not None and self._database.read_blocking(object_references.differs, version.uid, names):
            self._database.write_blocking(object_references.publish, version, names)

    def _readmit(self, connection: sqlite3.Connection, each: Object, now: int) -> bool:
        if not self._database.read_blocking(objects.exists, each.name):
            return False
        if not (ranges := self._database.read_blocking(object_references.ranges_of, each.file.name)):
            return False
        references.add(connection, each.file, now)
        holding.hold(connection, ranges, each.file.name)
        return True

    def _discard(self, publication: Publication) -> None:
        self._directory.removal.remove(staged.path for staged in publication.staged)


def _erase(connection: Connection, key: AgentKey) -> int:
    used = objects.used_by(connection, key)
    deleted = agents.delete(connection, key)
    objects.attribute(connection, key, used)
    return deleted
