"""Finding the KV that a turn starts from: in the pool, on disk, on another node or in the object store, else none."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentmem.errors import AgentmemError, ResourceExhausted
from agentmem.kv.blockfile import FileName
from agentmem.kv.ledger import Ledger, TokenIds
from agentmem.process import logs
from agentmem.process.shielding import run_shielded
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.generation import Chunk
from inference_service.engine.thread import EngineThread
from inference_service.memory.checkpoints import CheckpointCandidate, checkpoint_candidates
from inference_service.memory.match import Reason
from inference_service.memory.restore import Lookup, look_up
from inference_service.memory.speeds import Speeds
from inference_service.metrics import WorkerMetrics
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import Reservation
from inference_service.storage.client import NOTHING, StoreClient
from inference_service.turns.fetching import Fetcher
from inference_service.turns.restored import Restored

log = logging.getLogger(__name__)

_NO_FAULT = frozenset(
    {
        types_pb2.MISS_REASON_UNSPECIFIED,
        types_pb2.MISS_REASON_ABSENT,
        types_pb2.MISS_REASON_EVICTED,
        types_pb2.MISS_REASON_INCOMPATIBLE,
    }
)
"""Reasons of blocks that were not found: where all of the ledger's were, they are not why it was left."""


def kv_lookup(
    namespace: str,
    model: LoadedModel,
    ledger: Ledger,
    keep_tokens: int,
    sequence: TokenIds,
    checkpoints: Sequence[int] = (),
) -> Lookup:
    """Return which KV would serve `sequence`, whose first `keep_tokens` tokens are the ledger's. Hashes all tokens:
    call it off the event loop.
    """
    ids = model.fingerprint, namespace
    windows: tuple[CheckpointCandidate, ...] = ()
    if not model.geometry.resumes_anywhere:
        exact = model.geometry.in_order
        windows = checkpoint_candidates(*ids, ledger, keep_tokens, sequence, checkpoints, exact=exact)
    return look_up(*ids, ledger.token_ids, keep_tokens, sequence, windows)


@dataclass(eq=False, repr=False)
class Restorer:
    """Finds KV and reads it. Event loop; files on other threads. A bad or missing file is a miss, never an error.

    Blocks are read into the sequence's own blocks where the device's memory is the host's.
    """

    _store: StoreClient
    _fetcher: Fetcher
    _metrics: WorkerMetrics
    _min_tokens: int
    _speeds: Speeds
    _engine: EngineThread | None = None

    def computed(self, model: LoadedModel, chunks: Iterable[Chunk]) -> None:
        """Note a prompt's computed chunks: how long what is not fetched will take."""
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
        """Take the longest gapless run of blocks, those in the pool first, and read what of it is in files.

        `reservation` then holds those in the pool. A model with other layers than full attention resumes only at a
        checkpoint. KV elsewhere is fetched where that is estimated to be faster, and always `ahead` of a turn. Raises
        ResourceExhausted where the device has no memory for files.
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
            found.release()
        return found

    async def probe(self, key: AgentKey, model: LoadedModel, lookup: Lookup, *, ahead: bool = False) -> Restored:
        """Return what `find` would take if every file is good. Holds nothing, reads no file, and counts as no use."""
        found = Restored.in_pool(key, model, lookup)
        reason = await self._look(found, key, peek=True)
        self._conclude(found, self._choose(found, ahead=ahead) or reason)
        return found

    async def _look(self, found: Restored, key: AgentKey, *, peek: bool = False) -> Reason:
        """Ask the store, if it could have more than the pool; return why there is not more."""
        found.choose(0)
        # Without hot state the store alone knows the checkpoints that the turn's state will have.
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
            # Where named blocks end too early, another may begin as the sequence goes on.
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
        """Take the most that is worth reading, and what is elsewhere if worth fetching; return why not more."""
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
        """Choose, and read, until all that was chosen is good; return why it is not more."""
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
            good, bad = await self._fetcher.read(model.geometry, model.model_id, wanted, found.buffers)
            found.tensors |= good
            if not bad:
                return fault or less
            fault = next(iter(bad.values()))
            for name in bad:
                found.refuse(name)

    async def _take(self, found: Restored) -> None:
        """Allocate the blocks that files are read to."""
        arena, places = found.model.arenas.full, found.places()
        if self._engine is None or arena.has(places):
            return
        try:
            await run_shielded(self._engine.call(lambda: arena.take(places)))
        except MemoryError as error:
            raise ResourceExhausted(f"the device's memory is taken: {error}") from None

    async def _bring(self, found: Restored) -> list[FileName]:
        """Bring chosen files to the store's disk; return those that do not come."""
        files = {FileName.of(header): file for header, file in found.wanted_files() if not file.path}
        fetched = await self._fetcher.bring(found.namespace, files)
        for name, file in fetched.items():
            found.add_fetched(name, file)
        return [name for name in files if name not in fetched]

    def _conclude(self, found: Restored, reason: Reason) -> None:
        """Record what the choice reads, and why it is not more: there may be blocks, and no checkpoint."""
        blocks = found.block_tokens
        if found.tokens < blocks and found.lookup.keep_tokens <= blocks and reason in _NO_FAULT:
            reason = types_pb2.MISS_REASON_NOT_TRIMMABLE
        found.reason = reason or (types_pb2.MISS_REASON_UNSPECIFIED if found.tokens else types_pb2.MISS_REASON_ABSENT)
        found.load_bytes = sum(file.size_bytes for _, file in found.wanted_files())
