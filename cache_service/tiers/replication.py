"""Makes the object store agree with the rows: uploads of published files, deletions of objects without references.

One thread decides and writes rows; a few more upload. The work to do is in the database, so a crash loses none of it,
and a file that is not needed any more when its turn comes is never uploaded. Deletions go before uploads, and an
object is not uploaded while it is to be deleted. In a cluster each node uploads its own files, each time under a new
key, and one node deletes for all: the first by name that reaches the object store. Two nodes that both regard
themselves as the first do no harm.

A node that counts as gone may still be uploading an object, which then has no row. When its PUT is done and it reaches
the database again, even hours later, the node marks the object for deletion. If the node was killed, the deleting node
deletes the object once more some minutes later. Besides, all objects and rows are compared once a day and at each
start.

After a failure the thread waits, for up to a minute, or until a caller waits for a deletion; new commits do not end the
wait. Otherwise each commit wakes the thread.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import FileName
from agentmem.process.logs import event
from agentmem.validation import AgentKey
from cache_service.files import references, waiting
from cache_service.files.directory import DataDirectory
from cache_service.ledger.ledgers import Ledgers
from cache_service.metrics import Operation, RemoteMetrics
from cache_service.tiers import objects
from cache_service.tiers.objects import Object
from cache_service.tiers.remote.contract import (
    Claim,
    NotOwner,
    ObjectDamaged,
    ObjectMissing,
    ObjectName,
    RemoteError,
    RemoteRefused,
    RemoteTier,
)
from cache_service.tiers.warm_rows import WarmRows

log = logging.getLogger(__name__)

Quarantine = Callable[[str, FileName, bytes, str], object]
"""Takes a file that is damaged on the disk out of use: namespace, name, digest, reason. Any thread."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
_IDLE_SECONDS = 60.0
_FIRST_CLAIM_SECONDS = 5.0
_UPLOAD_THREADS = 4
_UPLOADS_AT_ONCE = 16
_DELETIONS_AT_ONCE = 500
_COMPARED_AT_ONCE = 500
_AGAIN_SECONDS = 300.0
"""After which an object is deleted once more that may have been on its way: longer than a PUT and its retries take."""
_COMPARE_SECONDS = 86_400.0
_OTHERS_SECONDS = 0.5
"""How often it is looked whether another node has deleted what is waited for."""


class Nodes(Protocol):
    """What there is to know of a cluster here."""

    @property
    def name(self) -> str:
        """This node's name; "" on a single machine."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id; "" likewise."""

    @property
    def sweeps(self) -> bool:
        """Whether this node deletes objects, which one has to do for all."""

    def reach_objects(self, reached: bool) -> None:
        """Say whether this node can."""

    def others(self) -> Set[str]:
        """The names of the other nodes that are there."""

    def after_beat(self, call: Callable[[], None]) -> None:
        """Call it, on a thread, whenever other nodes may have done something."""


class Alone:
    """A single machine."""

    name: Final = ""
    cluster_id: Final = ""
    sweeps: Final = True

    def reach_objects(self, reached: bool) -> None:
        """Nobody else asks."""

    def others(self) -> Set[str]:
        """None."""
        return frozenset()

    def after_beat(self, call: Callable[[], None]) -> None:
        """Never."""


@dataclass(eq=False)
class Replicator:
    """The thread that uploads and deletes. `start` before anything is published, `close` before the database."""

    _directory: DataDirectory
    _database: Ledgers
    _rows: WarmRows
    _tier: RemoteTier
    _metrics: RemoteMetrics
    _quarantine: Quarantine
    _seconds: float
    """For how long `deleted` waits."""
    _nodes: Nodes

    def __post_init__(self) -> None:
        self._claim: Claim | None = None
        self._compared: float | None = None
        self._again: deque[tuple[float, list[ObjectName]]] = deque()
        """What is to be deleted once more, and when."""
        self._unsettled: list[ObjectName] = []
        """What may have been put, and of which the rows do not know yet."""
        self._doing = Operation.CLAIM
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._stopping = threading.Event()
        self._first_claim: Future[None] = Future()
        self._deleted: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="remote", daemon=True)
        self._uploaders = ThreadPoolExecutor(_UPLOAD_THREADS, thread_name_prefix="upload")

    def start(self) -> None:
        """Claim the place, and begin. A place that does not answer at once is claimed later.

        Blocks. Raises RemoteRefused where settings or bucket have to be mended; then there is nothing to close.
        """
        self._pending_claim = self._database.write_blocking(
            objects.begin, location=self._tier.location, cluster_id=self._nodes.cluster_id
        )
        here = set(self._rows.read_blocking(references.all_names))
        self._rows.write_queue(waiting.begin, self._database.read_blocking(objects.copies, here))
        self._database.after_commit.append(self._wake.set)
        self._nodes.after_beat(self._wake.set)
        self._rows.after_commit(self._wake.set)
        self._thread.start()
        try:
            self._first_claim.result(_FIRST_CLAIM_SECONDS)
        except TimeoutError:
            event(log, "object store does not answer yet", logging.WARNING, location=self._tier.location)
        except RemoteRefused:
            self.close()
            raise

    def is_ready(self) -> bool:
        """Whether the place is ours, as far as is known."""
        return self._claim is not None

    async def deleted(self, key: AgentKey) -> int:
        """Wait until the objects of a deleted agent are gone, for some seconds; how many are not. Event loop."""
        hurried = False
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    progress = self._deleted
                    if not (count := await self._database.read(objects.waiting, key)):
                        return count
                    if not hurried:
                        hurried = True
                        self._hurry.set()
                    await asyncio.wait([asyncio.wrap_future(progress)], timeout=_OTHERS_SECONDS)
        except TimeoutError:
            return await self._database.read(objects.waiting, key)

    def close(self) -> None:
        """Stop after the requests that are running. May be called twice."""
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
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if not more:
                self._wake.wait(_IDLE_SECONDS)

    def _round(self) -> bool:
        """Do a part of what there is to do; whether there may be more."""
        if self._claim is None:
            self._take()
        deleted = False
        if self._nodes.sweeps:
            if self._compared is None or time.monotonic() - self._compared >= _COMPARE_SECONDS:
                self._compare()
            deleted = self._delete() or self._delete_again()
        return self._upload() or deleted

    def _failed(self, error: Exception) -> None:
        self._metrics.failures.labels(self._doing).inc()
        self._metrics.up.set(0)
        if isinstance(error, RemoteError) and self._doing != Operation.UPLOAD:
            self._nodes.reach_objects(False)
        level = logging.ERROR if isinstance(error, RemoteRefused) else logging.WARNING
        event(log, "object store failed", level, operation=self._doing, error=str(error))
        if not isinstance(error, RemoteError | AgentmemError | sqlite3.Error | OSError):
            log.error("it was not the object store's fault", exc_info=error)
        if not self._first_claim.done():
            if isinstance(error, RemoteRefused):
                self._first_claim.set_exception(error)
            else:
                self._first_claim.set_result(None)

    def _take(self) -> None:
        self._doing = Operation.CLAIM
        claim = self._pending_claim
        self._tier.claim(claim)
        self._database.write_blocking(objects.confirm, location=self._tier.location, claim=claim)
        self._claim = claim
        self._pending_claim = replace(claim, may_create=False)  # who takes the manifest away hands the place over
        self._metrics.up.set(1)
        self._nodes.reach_objects(True)
        event(log, "object store", location=self._tier.location)
        if not self._first_claim.done():
            self._first_claim.set_result(None)

    def _compare(self) -> None:
        """After each start, and once a day: what is there and what rows say. On a single machine nothing else changes
        either meanwhile; on several, objects have their rows before they are put, and are `present` only afterwards.
        """
        self._doing = Operation.LIST
        present = self._database.read_blocking(objects.present)
        missing, names, disowned = set(present), self._tier.names(), 0
        while some := list(islice(names, _COMPARED_AT_ONCE)):
            missing.difference_update(some)
            if unknown := [name for name in some if name not in present]:
                disowned += self._database.write_blocking(objects.disown, unknown)
        if missing:
            self._database.write_blocking(objects.forget, missing)
            self._rows.write_queue(waiting.add, [name.file for name in missing])
        self._compared = time.monotonic()
        there = len(present) - len(missing)
        event(log, "object store compared", objects=there, missing=len(missing), orphans=disowned)

    def _delete(self) -> bool:
        self._doing = Operation.DELETE
        uploaders = self._nodes.others() | ({self._nodes.name} if self._nodes.name else set())
        batch = self._database.read_blocking(objects.deletions, limit=_DELETIONS_AT_ONCE, live=uploaders)
        if not batch or self._claim is None:
            return False
        self._remove([each.name for each in batch])
        if late := [each.name for each in batch if each.late]:
            self._again.append((time.monotonic() + _AGAIN_SECONDS, late))
        finished = self._database.write_blocking(objects.end_deletions, numbers=[each.number for each in batch])
        if finished:
            self._database.scrub().result()  # the rows named agents that are gone
        progress, self._deleted = self._deleted, Future()
        progress.set_result(None)
        return True

    def _delete_again(self) -> bool:
        if not self._again or self._claim is None or time.monotonic() < self._again[0][0]:
            return False
        self._remove(self._again[0][1])
        self._again.popleft()
        return True

    def _remove(self, names: list[ObjectName]) -> None:
        self._doing = Operation.DELETE
        assert self._claim is not None, "nothing is deleted before the place is ours"
        if not self._tier.holds(self._claim):
            self._claim = None
            raise NotOwner(f"{self._tier.location}: another store has taken it over")
        self._tier.delete(names)
        self._metrics.deletions.inc(len(names))
        self._metrics.up.set(1)
        self._nodes.reach_objects(True)

    def _upload(self) -> bool:
        self._doing = Operation.UPLOAD
        if self._unsettled:  # of a round that could not say so
            self._settle([], self._unsettled)
        asked = self._rows.read_blocking(waiting.following, _UPLOADS_AT_ONCE)
        if not asked:
            if self._nodes.name and self._database.read_blocking(objects.any_held_back, self._nodes.name):
                self._database.write_blocking(objects.end_uploads, [], self._nodes.name)  # of an upload that failed
            return False
        batch, copied, others = self._database.write_blocking(
            objects.begin_uploads, asked, self._nodes.name, self._nodes.others()
        )
        self._unsettled = [each.name for each in batch]
        results = dict(zip(batch, self._uploaders.map(self._put, batch), strict=True))
        done = [each for each, result in results.items() if result is True]
        useless = [each.file.name for each, result in results.items() if result is False]
        failures = {each.name: result for each, result in results.items() if isinstance(result, RemoteError | OSError)}
        self._metrics.uploads.inc(len(done))
        self._metrics.upload_bytes.inc(sum(each.file.size_bytes for each in done))
        if done and not failures:
            self._metrics.up.set(1)
        if vain := [each.name for each, result in results.items() if result is False and self._nodes.name]:
            self._database.write_blocking(objects.forget, vain)  # or they would count as this node's to upload
        self._settle([each.name for each in done], [name for name in failures])
        over = [*(each.file.name for each in done), *useless, *copied]
        ids = {each.file.name: each.id for each in asked}
        later = [*(name.file for name in failures), *others]
        self._rows.write_queue(waiting.end, [ids[name] for name in over], [ids[name] for name in later])
        for failure in failures.values():
            raise failure
        return bool(batch or copied)

    def _settle(self, done: list[ObjectName], tried: list[ObjectName]) -> None:
        """Tell the rows what was put, and what may have been."""
        self._database.write_blocking(objects.end_uploads, done, self._nodes.name, tried)
        self._unsettled = []

    def _put(self, each: Object) -> bool | RemoteError | OSError | None:
        """Upload one file: whether it is there, and not, because nothing good is on the disk.

        An error that it has to be tried again for, after the others; None if it was not tried, because the store stops.
        """
        if self._stopping.is_set():
            return None
        try:
            self._tier.put(each.name, self._directory.path(each.file.name))
        except ObjectMissing:
            return False
        except ObjectDamaged:
            self._quarantine(each.file.key.namespace, each.file.name, each.file.digest, "digest")
            return False
        except (RemoteError, OSError) as error:
            return error
        return True
