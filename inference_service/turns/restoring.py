"""Finds KV to start from: in the pool, on disk, or elsewhere."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentmem.errors import AgentmemError, ResourceExhausted
from agentmem.kv.blockfile import BlockHeader, FileName
from agentmem.kv.ledger import Ledger, TokenIds
from agentmem.process import logs
from agentmem.process.shielding import run_shielded
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.generation import Chunk
from inference_service.engine.geometry import Geometry, HostTensors
from inference_service.engine.thread import EngineThread
from inference_service.memory.checkpoints import CheckpointCandidate, checkpoint_candidates
from inference_service.memory.match import Reason
from inference_service.memory.restore import Lookup, look_up
from inference_service.memory.speeds import Source, Speeds
from inference_service.metrics import WorkerMetrics
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import Reservation
from inference_service.storage.blocks import BlockMiss, read_file
from inference_service.storage.client import NOTHING, StoreClient
from inference_service.storage.transport import Into, nowhere, read_all
from inference_service.turns.restored import Restored, source_of

log = logging.getLogger(__name__)

_NO_FAULT = frozenset(
    {
        types_pb2.MISS_REASON_UNSPECIFIED,
        types_pb2.MISS_REASON_ABSENT,
        types_pb2.MISS_REASON_EVICTED,
        types_pb2.MISS_REASON_INCOMPATIBLE,
    }
)
"""If all of the ledger's blocks were found, these are not why."""


def kv_lookup(
    namespace: str,
    model: LoadedModel,
    ledger: Ledger,
    keep_tokens: int,
    sequence: TokenIds,
    checkpoints: Sequence[int] = (),
) -> Lookup:
    """Return KV that would serve `sequence`, whose first `keep_tokens` are the ledger's. Hashes tokens: not on the
    event loop.
    """
    ids = model.fingerprint, namespace
    windows: tuple[CheckpointCandidate, ...] = ()
    if not model.geometry.resumes_anywhere:
        exact = model.geometry.in_order
        windows = checkpoint_candidates(*ids, ledger, keep_tokens, sequence, checkpoints, exact=exact)
    return look_up(*ids, ledger.token_ids, keep_tokens, sequence, windows)


@dataclass(eq=False, repr=False)
class Restorer:
    """Finds, fetches and reads KV; a bad file is quarantined, and only a miss.

    Event loop; files on other threads, into the sequence's blocks if they are host memory.
    """

    _store: StoreClient
    _metrics: WorkerMetrics
    _min_tokens: int
    _speeds: Speeds
    _engine: EngineThread | None = None

    def computed(self, model: LoadedModel, chunks: Iterable[Chunk]) -> None:
        """Note chunks' speed."""
        for chunk in chunks:
            if chunk.alone:
                self._speeds.computed(model.model_id, chunk.tokens, chunk.ended - chunk.began)

    async def find(
        self,
        key: AgentKey,
        model: LoadedModel,
        lookup: Lookup,
        reservation: Reservation,
        *,
        ahead: bool = False,
    ) -> Restored:
        """Take the longest gapless run, the pool's first, and read files.

        `reservation` holds the pool's. Hybrid models resume only at checkpoints. KV elsewhere is fetched if estimated
        to be faster, always `ahead` of a turn. Raises ResourceExhausted without device memory.
        """
        started = time.monotonic()
        found = Restored.in_pool(key, model, lookup)
        found.hold(reservation)
        reason = await self._look(found, key)
        reason = await self._read(found, ahead=ahead) or reason
        self._conclude(found, reason)
        if found.tokens:
            wanted = found.wanted_files()
            found.tensors = {name: found.tensors[name] for name in (FileName.of(header) for header, _ in wanted)}
            found.read_seconds = time.monotonic() - started if wanted else 0.0
            self._metrics.load_bytes.labels(model.model_id).inc(found.load_bytes)
        else:
            found.tensors = {}
        return found

    async def probe(self, key: AgentKey, model: LoadedModel, lookup: Lookup, *, ahead: bool = False) -> Restored:
        """Return what `find` would take if files are good; it holds, reads and counts nothing."""
        found = Restored.in_pool(key, model, lookup)
        reason = await self._look(found, key, peek=True)
        self._conclude(found, self._choose(found, ahead=ahead) or reason)
        return found

    async def _look(self, found: Restored, key: AgentKey, *, peek: bool = False) -> Reason:
        """Ask the store if it could add; return why not more."""
        found.choose(0)
        # Without hot state only the store knows checkpoints of the turn's state.
        known = found.model.geometry.resumes_anywhere or found.room is None or found.room.hot is not None
        if known and found.tokens >= found.lookup.keep_tokens and not found.files_could_add():
            return types_pb2.MISS_REASON_UNSPECIFIED
        blocks = [name for name in found.lookup.hashes() if name not in found.blocks]
        windows = [window.name for window in found.lookup.checkpoints]
        opened = NOTHING
        try:
            if blocks or windows:
                nobody = key._replace(agent_id="")
                opened = await self._store.open(
                    nobody, block_hashes=blocks, window_hashes=windows, peek=peek, turn_agent_id=key.agent_id
                )
            found.files, found.window_files = dict(opened.files), dict(opened.windows)
            # Another's block may go on where named ones end.
            if (place := found.end) is not None:
                ids = key.namespace, found.model.fingerprint, place.parent, place.token_ids
                file = await self._store.find_block(*ids, peek)
                if file is not None and found.add(place, file.chain_hash, file.token_ids):
                    found.files[file.chain_hash] = file
        except AgentmemError as error:
            logs.event(log, "block lookup failed", logging.WARNING, error=error.message)
            return types_pb2.MISS_REASON_IO_ERROR
        if not found.missing:
            return types_pb2.MISS_REASON_UNSPECIFIED
        if opened.evicted:
            return types_pb2.MISS_REASON_EVICTED
        return types_pb2.MISS_REASON_INCOMPATIBLE if found.lookup.incompatible else types_pb2.MISS_REASON_ABSENT

    def _choose(self, found: Restored, *, ahead: bool) -> Reason:
        """Take what is worth reading or fetching; return why not more."""
        below = found.choose(self._min_tokens)
        if ahead or not (away := found.away):
            return below
        here = found.here()
        if self._speeds.fetches(found.model.model_id, found.tokens - here.tokens, away, time.monotonic()):
            return below
        found.files, found.window_files = here.files, here.window_files
        found.choose(self._min_tokens)
        return types_pb2.MISS_REASON_FETCH_SLOWER

    async def _read(self, found: Restored, *, ahead: bool) -> Reason:
        """Choose and read until all of it is good; return why not more."""
        fault: Reason = types_pb2.MISS_REASON_UNSPECIFIED
        model, counted = found.model, ahead
        while True:
            less = self._choose(found, ahead=ahead)
            computes = less == types_pb2.MISS_REASON_FETCH_SLOWER
            if not counted and (computes or found.away):
                self._metrics.fetch_choices.labels(model.model_id, "compute" if computes else "fetch").inc()
            counted = True
            if missing := await self._bring(found):
                fault = types_pb2.MISS_REASON_IO_ERROR
                for name in missing:
                    found.refuse(name)
                continue
            wanted = [each for each in found.wanted_files() if FileName.of(each[0]) not in found.tensors]
            if wanted:
                await self._take(found)
            good, bad = await self.read(model.geometry, model.model_id, wanted, found.buffers)
            found.tensors |= good
            if not bad:
                return fault or less
            fault = next(iter(bad.values()))
            for name in bad:
                found.refuse(name)

    async def _take(self, found: Restored) -> None:
        arena, places = found.model.arenas.full, found.places()
        if self._engine is None or arena.has(places):
            return
        try:
            await run_shielded(self._engine.call(lambda: arena.take(places)))
        except MemoryError as error:
            raise ResourceExhausted(f"the device's memory is taken: {error}") from None

    async def _bring(self, found: Restored) -> list[FileName]:
        """Bring chosen files to the store's disk; return the missing."""
        files = {FileName.of(header): file for header, file in found.wanted_files() if not file.path}
        missing = []
        for source in Source:
            names = {name: file for name, file in files.items() if source_of(file) is source}
            here = await self._fetch(found.namespace, source, names) if names else {}
            for name, file in here.items():
                found.add_fetched(name, file)
            missing += [name for name in names if name not in here]
        return missing

    async def _fetch(
        self, namespace: str, source: Source, files: Mapping[FileName, pb.StoredFile]
    ) -> dict[FileName, pb.StoredFile]:
        """Return files that came, and note how long it took."""
        began = time.monotonic()
        self._speeds.begin_fetch(source, began)
        try:
            here = await self._store.fetch(namespace, files)
        except AgentmemError as error:
            logs.event(log, "fetch failed", logging.WARNING, error=error.message)
            here = {}
        ended = time.monotonic()
        asked, came = (sum(files[name].size_bytes for name in names) for names in (files, here.keys() & files.keys()))
        self._speeds.end_fetch(source, asked, came, ended - began, ended)
        self._metrics.fetch_seconds.labels(source).observe(ended - began)
        self._metrics.fetch_bytes.labels(source).inc(came)
        return here

    async def read(
        self,
        geometry: Geometry,
        model_id: str,
        wanted: Sequence[tuple[BlockHeader, pb.StoredFile]],
        into: Into = nowhere,
    ) -> tuple[dict[FileName, HostTensors], dict[FileName, Reason]]:
        """Return good files, and faults of the others; see `read_all`."""
        results = await read_all(wanted, geometry, into) if wanted else []
        good: dict[FileName, HostTensors] = {}
        bad: dict[FileName, Reason] = {}
        for (header, file), result in zip(wanted, results, strict=True):
            name = FileName.of(header)
            if isinstance(result, BlockMiss):
                bad[name] = result.reason
                await self._refuse(model_id, header, file.digest, result)
            else:
                good[name] = result
        return good, bad

    async def read_bytes(
        self, geometry: Geometry, model_id: str, header: BlockHeader, file: pb.StoredFile
    ) -> memoryview | None:
        """Return a verified file; None if missing or bad."""
        try:
            return (await asyncio.to_thread(read_file, file.path, header, file.digest, geometry))[0]
        except BlockMiss as miss:
            await self._refuse(model_id, header, file.digest, miss)
            return None

    async def _refuse(self, model_id: str, header: BlockHeader, digest: bytes, miss: BlockMiss) -> None:
        namespace, name = header.namespace, FileName.of(header)
        self._metrics.load_failures.labels(model_id, miss.fault).inc()
        logs.event(log, "block refused", logging.WARNING, fault=miss.fault, chain_hash=name.chain_hash.hex())
        if not miss.damaged:
            return
        try:
            await self._store.quarantine(namespace, name, digest, miss.fault)
        except AgentmemError as error:
            logs.event(log, "quarantine failed", logging.WARNING, error=error.message)

    def _conclude(self, found: Restored, reason: Reason) -> None:
        """Record what is read and why not more, such as a lacking checkpoint."""
        blocks = found.block_tokens
        if found.tokens < blocks and found.lookup.keep_tokens <= blocks and reason in _NO_FAULT:
            reason = types_pb2.MISS_REASON_NOT_TRIMMABLE
        found.reason = reason or (types_pb2.MISS_REASON_UNSPECIFIED if found.tokens else types_pb2.MISS_REASON_ABSENT)
        found.load_bytes = sum(file.size_bytes for _, file in found.wanted_files())
