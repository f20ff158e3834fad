"""Brings files back from the object store, once for all who ask at the same time."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import BlockFileError, FileName
from agentmem.process.logs import event
from agentmem.tracing import Threads
from cache_service.files import references
from cache_service.files.directory import DataDirectory
from cache_service.files.references import FileRow
from cache_service.ledger.ledgers import Ledgers
from cache_service.metrics import Fetched, Operation, RemoteMetrics
from cache_service.tiers import objects
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.objects import Object
from cache_service.tiers.remote.contract import ObjectDamaged, ObjectMissing, ObjectName, RemoteError
from cache_service.tiers.warm_rows import WarmRows

if TYPE_CHECKING:
    from cache_service.tiers.remote.s3 import S3Tier

log = logging.getLogger(__name__)

_Outcome = tuple[Fetched, FileRow | None]
"""How a fetch ended, and the file, if there is a use for it."""
_THREADS = 8
_REST_SECONDS = 10.0


@dataclass(eq=False)
class Retriever:
    """`fetch` on the event loop; close it before the BlockStore."""

    _directory: DataDirectory
    _database: Ledgers
    _rows: WarmRows
    _blocks: BlockStore
    _tier: "S3Tier"
    _metrics: RemoteMetrics
    _ready: Callable[[], bool]
    _seconds: float

    def __post_init__(self) -> None:
        self._threads = Threads(_THREADS, thread_name_prefix="fetch")
        self._lock = threading.Lock()
        self._rest_until = 0.0
        self._running: dict[ObjectName, Future[_Outcome]] = {}

    async def fetch(self, namespace: str, names: Sequence[FileName]) -> list[FileRow]:
        """Return those of `names` that are on the disk by now; longer fetches go on, for the next one who asks.

        A missing or damaged object is forgotten. After a failure nothing is asked for some seconds: computing KV is
        faster than waiting. Raises ResourceExhausted.
        """
        warm = await self._rows.read(references.find, namespace=namespace, names=names)
        missing = set(names) - {row.name for row in warm}
        found = await self._database.read(objects.find, namespace=namespace, names=missing) if missing else []
        if not found or not self._ready() or time.monotonic() < self._rest_until:
            return warm
        await asyncio.wrap_future(self._blocks.admit(namespace))
        fetches = [asyncio.wrap_future(self._submit(each)) for each in found]
        done, late = await asyncio.wait(fetches, timeout=self._seconds)
        results = [each.result() for each in done if not each.cancelled()]
        fetched = [row for _, row in results if row is not None]
        if not fetched and (late or any(result is Fetched.FAILED for result, _ in results)):
            self._rest_until = time.monotonic() + _REST_SECONDS
        return [*warm, *fetched]

    def close(self) -> None:
        """Wait for running requests only."""
        self._threads.shutdown(cancel_futures=True)

    def _submit(self, each: Object) -> Future[_Outcome]:
        with self._lock:
            running = self._running.get(each.name)
            if running is None:
                running = self._running[each.name] = self._threads.submit(self._fetch, each)
        return running

    def _fetch(self, each: Object) -> _Outcome:
        try:
            result, row = self._bring(each)
        except (RemoteError, AgentmemError, OSError) as error:
            self._metrics.failures.labels(Operation.FETCH).inc()
            event(log, "fetch failed", logging.WARNING, error=str(error))
            result, row = Fetched.FAILED, None
        finally:
            with self._lock:
                self._running.pop(each.name, None)
        self._metrics.fetches.labels(result).inc()
        if result is Fetched.WARM:
            self._metrics.fetch_bytes.inc(each.file.size_bytes)
        return result, row

    def _bring(self, each: Object) -> _Outcome:
        staged = self._directory.new_staging_path(each.file.name)
        try:
            self._tier.get(each.name, each.file.size_bytes, staged)
            return Fetched.WARM, self._blocks.adopt(each, staged).result()
        except (ObjectMissing, ObjectDamaged, BlockFileError) as error:
            result = Fetched.MISSING if isinstance(error, ObjectMissing) else Fetched.DAMAGED
        finally:
            staged.unlink(missing_ok=True)
        event(log, "object refused", logging.WARNING, chain_hash=each.file.name.chain_hash.hex(), fault=result)
        self._database.write_blocking(objects.forget, [each.name])
        return result, None
