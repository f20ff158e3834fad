"""Makes the object store agree with the rows: uploads of files that are held, deletions of objects without use.

One thread decides and writes rows; a few more upload. An upload has its row before it begins; where the row goes
meanwhile, its deletion waits until the upload is over, or its node is gone. In a cluster each node uploads its own
files, and the first by name deletes for all; two do no harm. Objects and rows are compared at each start and every
hour, which finds the last PUT of a killed node.

The queue is in memory. After a failure the thread waits, for up to a minute, or until a caller waits for a deletion.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import BLOCK_TOKENS, FileKind, FileName
from agentmem.process.logs import event
from cache_service.files import holding
from cache_service.files.directory import DataDirectory
from cache_service.files.references import FileRow
from cache_service.ledger import object_references
from cache_service.ledger.ledgers import Ledgers
from cache_service.metrics import Operation, RemoteMetrics
from cache_service.tiers import objects
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.objects import Object
from cache_service.tiers.remote.contract import (
    ObjectDamaged,
    ObjectMissing,
    ObjectName,
    RemoteError,
    RemoteRefused,
    RemoteUnavailable,
)
from cache_service.tiers.warm_rows import WarmRows

if TYPE_CHECKING:
    from cache_service.tiers.remote.s3 import S3Tier

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
_LONGEST_PAUSE_OF_A_NODE = 10.0
_IDLE_SECONDS = 60.0
_FIRST_CLAIM_SECONDS = 5.0
"""In a cluster the lease of a start goes on."""
_UPLOAD_THREADS = 4
_UPLOADS_AT_ONCE = 16
_DELETIONS_AT_ONCE = 500
_COMPARED_AT_ONCE = 500
_COMPARE_SECONDS = 3600.0


class Nodes:
    """A single machine, which has no others."""

    @property
    def name(self) -> str:
        return ""

    @property
    def cluster_id(self) -> str:
        return ""

    @property
    def sweeps(self) -> bool:
        """This node deletes objects for all."""
        return True

    def reach_objects(self, reached: bool) -> None:
        """Say whether this node can."""

    def others(self) -> Set[str]:
        """Return the other nodes that are there."""
        return frozenset()

    def after_beat(self, call: Callable[[], None]) -> None:
        """Call it, on a thread, whenever other nodes may have done something."""


@dataclass(eq=False)
class Replicator:
    """`start` before anything is published, `close` before the BlockStore."""

    _directory: DataDirectory
    _database: Ledgers
    _rows: WarmRows
    _blocks: BlockStore
    _tier: "S3Tier"
    _metrics: RemoteMetrics
    seconds: float
    """How long a caller should wait for deletions."""
    _nodes: Nodes

    def __post_init__(self) -> None:
        self.is_ready = False
        """The place is ours, as far as is known."""
        self._owner, self._may_create = "", False
        self._compared: float | None = None
        self._found: float | None = None
        self._lock = threading.Lock()
        self._new: dict[FileName, None] = {}
        self._later: dict[FileName, None] = {}
        """Tails, which the next turn replaces, and what has failed."""
        self._busy: dict[FileName, None] = {}
        self._unsettled: set[ObjectName] = set()
        """Uploads whose end the ledger does not know: their rows may be gone."""
        self._doing = Operation.CLAIM
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote", daemon=True)
        self._uploaders = ThreadPoolExecutor(_UPLOAD_THREADS, thread_name_prefix="upload")

    def start(self) -> None:
        """Claim the place, now or later, and begin. Blocks. Raises RemoteRefused; then there is nothing to close."""
        self._owner, self._may_create = self._database.write_blocking(
            objects.begin, self._tier.location, self._nodes.cluster_id, self._nodes.name
        )
        self._find()
        claim = self._uploaders.submit(self._claim)
        try:
            claim.result(_FIRST_CLAIM_SECONDS)
        except RemoteUnavailable as error:
            self._failed(error)
        except RemoteRefused:
            self._uploaders.shutdown()
            raise
        except TimeoutError:  # the thread claims it later
            pass
        self._blocks.on_held = self.add
        self._database.after_commit.append(self._wake.set)
        self._nodes.after_beat(self._wake.set)
        self._thread.start()

    def add(self, names: Iterable[FileName]) -> None:
        """Upload these, if they are held when their turn comes. Any thread."""
        with self._lock:
            self._new.update(dict.fromkeys(names))
        self._wake.set()

    def _find(self) -> None:
        """Upload what is held here and referred to by no row there."""
        held = self._rows.read_blocking(holding.all_ranges)
        uids = sorted({each.uid for each, _ in held})
        missing = {name for _, name in held - self._database.read_blocking(object_references.referred, uids)}
        with self._lock:
            missing -= self._later.keys()
        if missing:
            self.add(missing)
        self._found = time.monotonic()

    def backlog(self) -> int:
        with self._lock:
            return len(self._new.keys() | self._later.keys() | self._busy.keys())

    def hurry(self) -> None:
        """End the wait after a failure."""
        self._hurry.set()

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._hurry.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._uploaders.shutdown()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._wake.clear()
            self._hurry.clear()
            if self._stopping.is_set():
                return
            try:
                more = self._round()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round tries again
                self._failed(error)
                self._hurry.wait(pause)
                # Other nodes' deletions wait for what this one releases.
                pause = min(2 * pause, _LONGEST_PAUSE_OF_A_NODE if self._nodes.name else LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if not more:
                self._wake.wait(_IDLE_SECONDS)

    def _round(self) -> bool:
        """Return whether there may be more to do."""
        name, deleted = self._nodes.name, False
        if name and self._database.read_blocking(objects.any_held_back, name):  # also while no object can be reached
            self._database.write_blocking(objects.release, name)
        if self._unsettled:
            self._database.write_blocking(objects.disown, self._unsettled)
            self._unsettled.clear()
        if not self.is_ready:
            self._claim()
        if self._found is None or time.monotonic() - self._found >= _COMPARE_SECONDS:
            self._find()
        if self._nodes.sweeps:
            if self._compared is None or time.monotonic() - self._compared >= _COMPARE_SECONDS:
                self._compare()
            deleted = self._delete()
        return self._upload() or deleted

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, RemoteError | OSError):  # the ledger's, or a bug
            event(log, "rows of objects cannot be read or written", logging.WARNING, error=str(error))
            if not isinstance(error, AgentmemError | sqlite3.Error):
                log.error("it was not the ledger's fault", exc_info=error)
            return
        self._metrics.failures.labels(self._doing).inc()
        self._metrics.up.set(0)
        if isinstance(error, RemoteError) and self._doing != Operation.UPLOAD:
            self._nodes.reach_objects(False)
        level = logging.ERROR if isinstance(error, RemoteRefused) else logging.WARNING
        event(log, "object store failed", level, location=self._tier.location, operation=self._doing, error=str(error))

    def _claim(self) -> None:
        self._doing = Operation.CLAIM
        try:
            self._tier.claim(self._owner, may_create=self._may_create)
        except RemoteRefused:
            self.is_ready = False
            raise
        self._database.write_blocking(objects.confirm, self._tier.location)
        self._may_create = False  # who takes the manifest away hands the place over
        if not self.is_ready:
            event(log, "object store", location=self._tier.location)
        self.is_ready = True
        self._reached()

    def _reached(self) -> None:
        self._metrics.up.set(1)
        self._nodes.reach_objects(True)

    def _compare(self) -> None:
        self._claim()
        self._doing = Operation.LIST
        present = self._database.read_blocking(objects.present)
        missing, names, disowned = set(present), self._tier.names(), 0
        while some := list(islice(names, _COMPARED_AT_ONCE)):
            missing.difference_update(some)
            if unknown := [name for name in some if name not in present]:
                disowned += self._database.write_blocking(objects.disown, unknown)
        if missing:
            self._database.write_blocking(objects.forget, missing)
            self.add(name.file for name in missing)
        self._compared = time.monotonic()
        there = len(present) - len(missing)
        event(log, "object store compared", objects=there, missing=len(missing), orphans=disowned)

    def _delete(self) -> bool:
        self._doing = Operation.DELETE
        batch = self._database.read_blocking(objects.deletions, _DELETIONS_AT_ONCE, self._nodes.others())
        if not batch:
            return False
        self._tier.delete(list(batch.values()))
        self._metrics.deletions.inc(len(batch))
        self._reached()
        if self._database.write_blocking(objects.end_deletions, batch):
            self._database.scrub().result()  # the rows named agents that are gone
        return True

    def _upload(self) -> bool:
        self._doing = Operation.UPLOAD
        with self._lock:
            waiting = self._new or self._later
            are_new = waiting is self._new
            self._busy = dict.fromkeys(islice(waiting, _UPLOADS_AT_ONCE))
            for name in self._busy:
                del waiting[name]
        try:
            return bool(self._busy) and self._upload_some(are_new)
        finally:
            with self._lock:
                self._later.update(self._busy)
                self._busy = {}

    def _upload_some(self, are_new: bool) -> bool:
        """Leave what is busy where it has to be tried again; return whether there may be more to do."""
        files = self._rows.read_blocking(holding.ranges, list(self._busy))
        over = self._busy.keys() - {file.name for file in files}  # gone meanwhile
        chosen = {file: ranges for file, ranges in files.items() if not (are_new and _is_tail(file))}
        begun = self._database.write_blocking(
            objects.begin_uploads, chosen.items(), self._nodes.name, self._nodes.others()
        )
        over |= {file.name for file in chosen} - {each.file.name for each in begun.uploads} - {*begun.others}
        self._unsettled.update(each.name for each in begun.uploads)
        results = dict(zip(begun.uploads, self._uploaders.map(self._put, begun.uploads), strict=True))
        done = [each for each, result in results.items() if result is True]
        failures = [result for result in results.values() if isinstance(result, RemoteError | OSError)]
        self._metrics.uploads.inc(len(done))
        self._metrics.upload_bytes.inc(sum(each.file.size_bytes for each in done))
        over |= {each.file.name for each, result in results.items() if isinstance(result, bool)}
        self._blocks.follow().result()  # forks of before, which knew no object to refer to
        ranges = self._rows.read_blocking(holding.ranges, [each.file.name for each in done])
        self._database.write_blocking(
            objects.end_uploads,
            {each.name: ranges.get(each.file, []) for each in done},
            [each.name for each in begun.uploads],
        )
        self._unsettled.clear()
        if useless := over - {each.file.name for each in done}:
            self._database.write_blocking(objects.give_up, useless, self._nodes.name)
        with self._lock:
            self._busy = {name: None for name in self._busy if name not in over}
        for failure in failures:
            raise failure
        if done:
            self._metrics.up.set(1)
        return bool(over) or are_new

    def _put(self, each: Object) -> bool | RemoteError | OSError | None:
        """Return True if the object is there, False if nothing good is on the disk, an error to try again, None if the
        store stops.
        """
        if self._stopping.is_set():
            return None
        try:
            self._tier.put(each.name, self._directory.path(each.file.name))
        except ObjectMissing:
            return False
        except ObjectDamaged:
            self._blocks.quarantine(each.file.key.namespace, each.file.name, each.file.digest, "digest")
            return False
        except (RemoteError, OSError) as error:
            return error
        return True


def _is_tail(file: FileRow) -> bool:
    return file.name.kind is FileKind.BLOCK and file.token_count < BLOCK_TOKENS
