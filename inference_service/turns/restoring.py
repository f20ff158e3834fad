"""Finding the KV that a turn starts from: in the pool, then on disk, then in the object store, else none."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentmem.blockfile import BlockHeader
from agentmem.identity import FileKind, FileName, Ledger, TokenIds
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.checkpoints import Checkpoint
from inference_service.engine.device import has_own_memory
from inference_service.engine.geometry import Caches, HostTensors
from inference_service.engine.preallocating import PreallocatedBuffers
from inference_service.engine.thread import EngineThread
from inference_service.memory.checkpoints import CheckpointCandidate, checkpoint_candidates, stored_tokens
from inference_service.memory.match import Reason
from inference_service.memory.restore import NO_LOOKUP, NOTHING_CHOSEN, Choice, Lookup, Place, choose, look_up
from inference_service.metrics import WorkerMetrics
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import Reservation
from inference_service.pool.blocks import BlockTokens
from inference_service.pool.kv import Table
from inference_service.turns.fetching import Fetcher

_NO_FAULT = frozenset(
    {
        types_pb2.MISS_REASON_UNSPECIFIED,
        types_pb2.MISS_REASON_ABSENT,
        types_pb2.MISS_REASON_EVICTED,
        types_pb2.MISS_REASON_INCOMPATIBLE,
    }
)
"""Reasons that speak of blocks which were not found: where all of the ledger's were, they are not why it was left."""


def kv_lookup(
    namespace: str,
    model: LoadedModel,
    ledger: Ledger,
    keep_tokens: int,
    sequence: TokenIds,
    checkpoints: Sequence[int] = (),
) -> Lookup:
    """Return which KV would serve `sequence`, whose first `keep_tokens` tokens are the ledger's.

    Names of blocks are hashes of all tokens: milliseconds for long contexts, so call it off the event loop.
    """
    ids = model.fingerprint, namespace
    windows: tuple[CheckpointCandidate, ...] = ()
    if not model.geometry.resumes_anywhere:
        exact = model.geometry.states is not None
        windows = checkpoint_candidates(*ids, ledger, keep_tokens, sequence, checkpoints, exact=exact)
    return look_up(*ids, ledger.token_ids, keep_tokens, sequence, windows)


@dataclass(eq=False)
class Restored:
    """The KV found for one sequence, what of it is taken, and the caches made of that.

    `blocks` and `windows` are in the pool, `files` and `window_files` outside, all by chain hash. `reason` says why not
    more is taken. `tensors` are what was read of files, until `caches` is called; of blocks there are none where these
    were read into `buffers`.
    """

    model: LoadedModel
    namespace: str = ""
    lookup: Lookup = NO_LOOKUP
    blocks: dict[bytes, int] = field(default_factory=dict)
    windows: dict[bytes, Table] = field(default_factory=dict)
    files: dict[bytes, pb.StoredFile] = field(default_factory=dict)
    window_files: dict[bytes, pb.StoredFile] = field(default_factory=dict)
    choice: Choice = NOTHING_CHOSEN
    reason: Reason = types_pb2.MISS_REASON_UNSPECIFIED
    load_bytes: int = 0
    read_seconds: float = 0.0
    tensors: dict[FileName, HostTensors] = field(default_factory=dict)
    buffers: PreallocatedBuffers | None = None

    @classmethod
    def in_pool(cls, key: AgentKey, model: LoadedModel, lookup: Lookup) -> "Restored":
        """Begin with what is in the pool. `hold` it before the next await if it is to be used."""
        pool = model.memory.pool
        blocks = {name: block for name in lookup.hashes() if (block := pool.full.find(name)) is not None}
        windows = {w.name: table for w in lookup.checkpoints if (table := pool.find_checkpoint(w.name)) is not None}
        found = cls(model, key.namespace, lookup, blocks, windows)
        if (place := found.end) is not None:
            closest = pool.full.closest(BlockTokens(key.namespace, place.parent, place.token_ids))
            if closest is not None and found.add(place, *closest[1:]):
                blocks[closest[1]] = closest[0]
        return found

    @property
    def tokens(self) -> int:
        """How many tokens are reused."""
        return self.choice.tokens

    @property
    def by_tier(self) -> list[types_pb2.TierTokens]:
        """Reused tokens by the tier that they were found in, fastest first, without empty ones."""
        found = ((c.usable_tokens, self.files[c.header.chain_hash].tier) for c in self.choice.warm)
        remote = sum(tokens for tokens, tier in found if tier == types_pb2.TIER_REMOTE)
        tiers = (
            (types_pb2.TIER_HOT, self.choice.hot_tokens),
            (types_pb2.TIER_WARM, self.choice.warm_tokens - remote),
            (types_pb2.TIER_REMOTE, remote),
        )
        return [types_pb2.TierTokens(tier=tier, tokens=tokens) for tier, tokens in tiers if tokens]

    @property
    def tier(self) -> types_pb2.Tier.ValueType:
        """The slowest tier used."""
        return self.by_tier[-1].tier if self.tokens else types_pb2.TIER_NONE

    def stored_windows(self) -> dict[int, int]:
        """Return the sequence's windows that are on disk, if any KV is used: stored tokens by position."""
        if not self.tokens:
            return {}
        stored = stored_tokens(self.lookup.checkpoints, self.window_files)
        found = (window for window in self.lookup.checkpoints if window.name in stored)
        return {window.position: stored[window.name] for window in found if window.position == window.usable_tokens}

    def hold(self, reservation: Reservation) -> None:
        """Pin what is in the pool for as long as the reservation lasts; what is read of files goes with it, too."""
        reservation.releases.append(self.release)
        windows = [Table(0, (), table.window_tokens, table.pieces) for table in self.windows.values()]
        for table in (Table(0, tuple(self.blocks.values())), *windows):
            self.model.memory.pool.acquire(table)
            reservation.pins.append(table)

    def release(self) -> None:
        """Let go of what was read of files, if no caches were made of it."""
        self.tensors, self.buffers = {}, None

    def choose(self, min_file_tokens: int) -> Reason:
        """Take the most that can be reused. Fewer than `min_file_tokens` of files are not worth reading: say so."""
        self.choice = self._best()
        if not 0 < self.choice.warm_tokens < min_file_tokens:
            return types_pb2.MISS_REASON_UNSPECIFIED
        self.files.clear()
        self.choice = self._best()
        return types_pb2.MISS_REASON_BELOW_MIN

    def _best(self) -> Choice:
        geometry = self.model.geometry
        if geometry.resumes_anywhere:
            return choose(self.lookup, self.blocks, self.files)
        stored = {
            **stored_tokens(self.lookup.checkpoints, self.window_files),
            **{name: table.window_tokens for name, table in self.windows.items()},
        }
        return choose(self.lookup, self.blocks, self.files, stored, geometry.window, exact=geometry.states is not None)

    @property
    def missing(self) -> list[bytes]:
        """Names of blocks any one of which would give more; see Lookup."""
        return self.lookup.missing({*self.blocks, *self.files})

    @property
    def block_tokens(self) -> int:
        """How many tokens there are blocks for, whatever windows there are."""
        return choose(self.lookup, self.blocks, self.files).tokens

    @property
    def end(self) -> Place | None:
        """Where another's block could go on; None where all that the agent had is found: what follows then is new."""
        if 0 < self.lookup.keep_tokens <= self.block_tokens:
            return None
        return self.lookup.end({*self.blocks, *self.files})

    def files_could_add(self) -> bool:
        """Whether files could give more than what the pool has."""
        windows = (min(window.usable_tokens, self.block_tokens) for window in self.lookup.checkpoints)
        return bool(self.missing) or self.end is not None or max(windows, default=0) > self.choice.tokens

    def wanted_files(self) -> list[tuple[BlockHeader, pb.StoredFile]]:
        """Return the files that the choice needs, with the headers that they must have."""
        wanted = [(c.header, self.files[c.header.chain_hash]) for c in self.choice.warm]
        window = self.choice.checkpoint
        if window is not None and window.name not in self.windows:
            file = self.window_files[window.name]
            wanted.append((window.header(self.model.fingerprint, self.namespace, file.token_count), file))
        return wanted

    def add_fetched(self, name: FileName, file: pb.StoredFile) -> None:
        """Replace a remote file by its copy on the store's disk. It still counts as remote, where it was found."""
        found = pb.StoredFile()
        found.CopyFrom(file)
        found.tier = types_pb2.TIER_REMOTE
        self._of_kind(name)[name.chain_hash] = found

    def add(self, place: Place, name: bytes, token_ids: bytes) -> bool:
        """Look for that block, too, which was found at `place` by its tokens; False where it is of no use."""
        lookup = self.lookup.with_block(self.model.fingerprint, self.namespace, place, name, token_ids)
        self.lookup = lookup or self.lookup
        return lookup is not None

    def refuse(self, name: FileName) -> None:
        """Leave out a file that turned out to be bad."""
        del self._of_kind(name)[name.chain_hash]

    def caches(self) -> Caches:
        """Make the caches to start from, once; they have room for the prompt and one token more. Engine thread."""
        tensors, self.tensors = self.tensors, {}
        buffers, self.buffers = self.buffers, None
        if not self.tokens:
            return self.model.new_caches()
        blocks = [self.blocks[candidate.header.chain_hash] for candidate in self.choice.hot]
        warm = [tensors[FileName.of(candidate.header)] for candidate in self.choice.warm]
        checkpoint, room = self._checkpoint(tensors), self._room
        if buffers is None or not warm:
            return self.model.arenas.caches(self.tokens, blocks, warm, checkpoint, room)
        last = self.choice.warm[-1].header
        buffers.clear(last.first_token + last.token_count)
        return self.model.arenas.caches(self.tokens, blocks, [], checkpoint, room, buffers)

    def preallocated(self) -> PreallocatedBuffers:
        """Return buffers that the choice's files are read into. Engine thread.

        Raises ResourceExhausted where the device has no memory for them: threads will write all of it.
        """
        engine = self.model.engine
        engine.headroom.require(self._room * engine.token_bytes, f"KV of {self.tokens} tokens")
        return self.model.arenas.preallocate(self.tokens, self._room)

    @property
    def allocated_tokens(self) -> int:
        """How many of the reused tokens are in memory that `caches` takes as it is."""
        return self.choice.warm_tokens if self.buffers is not None else 0

    @property
    def _room(self) -> int:
        return self.lookup.limit + 2

    def _checkpoint(self, tensors: Mapping[FileName, HostTensors]) -> Checkpoint | None:
        window, arenas, surplus = self.choice.checkpoint, self.model.arenas, self.choice.surplus
        if window is None:
            return None
        if (table := self.windows.get(window.name)) is not None:
            return arenas.checkpoint(table.pieces, table.window_tokens - surplus, self.tokens)
        return arenas.uploaded(tensors[FileName.window(window.name)], surplus, self.tokens)

    def _of_kind(self, name: FileName) -> dict[bytes, pb.StoredFile]:
        return self.window_files if name.kind is FileKind.WINDOW else self.files


class Restorer:
    """Finds KV and reads it. Event loop; files on other threads. A bad or missing file is a miss, never an error.

    Blocks are read into the caches' own buffers where the device's memory is the host's and the engine is idle. One
    that is at work would be waited for until its step ends: files are read into other memory meanwhile, and copied.
    """

    def __init__(
        self, fetcher: Fetcher, metrics: WorkerMetrics, min_tokens: int, engine: EngineThread | None = None
    ) -> None:
        self._engine = engine
        self._fetcher = fetcher
        self._metrics = metrics
        self._min_tokens = min_tokens

    async def find(
        self, key: AgentKey, model: LoadedModel, lookup: Lookup, reservation: Reservation, *, incompatible: bool = False
    ) -> Restored:
        """Take the longest gapless run of blocks, those in the pool first, and read what of it is in files.

        `reservation` then holds those in the pool. A model with other layers than full attention resumes only where
        there is a checkpoint. `incompatible`: the agent's own KV is of another model. Raises ResourceExhausted where
        the device has no memory for what files would be read into.
        """
        started = time.monotonic()
        found = Restored.in_pool(key, model, lookup)
        found.hold(reservation)
        reason = await self._look(found, key, incompatible=incompatible)
        reason = await self._read(found) or reason
        self._conclude(found, reason)
        if found.tokens:
            wanted = found.wanted_files()
            found.tensors = {name: found.tensors[name] for name in (FileName.of(header) for header, _ in wanted)}
            found.read_seconds = time.monotonic() - started if wanted else 0.0
            self._metrics.load_bytes.labels(model.model_id).inc(found.load_bytes)
        else:
            found.release()
        return found

    async def probe(self, key: AgentKey, model: LoadedModel, lookup: Lookup, *, incompatible: bool = False) -> Restored:
        """Return what `find` would take if every file is good. Holds nothing, reads no file, and counts as no use."""
        found = Restored.in_pool(key, model, lookup)
        reason = await self._look(found, key, incompatible=incompatible, peek=True)
        self._conclude(found, found.choose(self._min_tokens) or reason)
        return found

    async def _look(self, found: Restored, key: AgentKey, *, incompatible: bool, peek: bool = False) -> Reason:
        """Ask the store, if it could have more than the pool; return why there is not more, as far as it knows."""
        found.choose(0)
        if found.tokens >= found.lookup.keep_tokens and not found.files_could_add():
            return types_pb2.MISS_REASON_UNSPECIFIED
        opened, reason = await self._fetcher.look(
            key,
            [name for name in found.lookup.hashes() if name not in found.blocks],
            [window.name for window in found.lookup.checkpoints],
            peek,
        )
        found.files, found.window_files = dict(opened.files), dict(opened.windows)
        await self._look_by_tokens(found, key, peek)
        if reason or not (missing := found.missing):
            return reason
        if not opened.evicted.isdisjoint(missing):
            return types_pb2.MISS_REASON_EVICTED
        return types_pb2.MISS_REASON_INCOMPATIBLE if incompatible else types_pb2.MISS_REASON_ABSENT

    async def _look_by_tokens(self, found: Restored, key: AgentKey, peek: bool) -> None:
        """Ask the store for a block that begins as the sequence goes on, where those that were named end too early."""
        if (place := found.end) is None:
            return
        file = await self._fetcher.look_by_tokens(key.namespace, found.model.fingerprint, place, peek)
        if file is not None and found.add(place, file.chain_hash, file.token_ids):
            found.files[file.chain_hash] = file

    async def _read(self, found: Restored) -> Reason:
        """Choose, and read what was chosen, until all of it is good; return why it is not more."""
        fault: Reason = types_pb2.MISS_REASON_UNSPECIFIED
        model = found.model
        while True:
            below = found.choose(self._min_tokens)
            if missing := await self._bring(found):
                fault = types_pb2.MISS_REASON_IO_ERROR
                for name in missing:
                    found.refuse(name)
                continue
            wanted = [each for each in found.wanted_files() if FileName.of(each[0]) not in found.tensors]
            if found.choice.warm and not found.tensors and self._engine and self._engine.idle and not has_own_memory():
                found.buffers = None  # Those of files that were all bad go before others are allocated.
                found.buffers = await self._engine.call(found.preallocated)
            good, bad = await self._fetcher.read(model.geometry, found.namespace, model.model_id, wanted, found.buffers)
            found.tensors |= good
            if not bad:
                return fault or below
            fault = next(iter(bad.values()))
            for name in bad:
                found.refuse(name)

    async def _bring(self, found: Restored) -> list[FileName]:
        """Bring what was chosen from the object store to the store's disk; return what does not come."""
        names = [FileName.of(header) for header, file in found.wanted_files() if not file.path]
        fetched = await self._fetcher.bring(found.namespace, names) if names else {}
        for name, file in fetched.items():
            found.add_fetched(name, file)
        return [name for name in names if name not in fetched]

    def _conclude(self, found: Restored, reason: Reason) -> None:
        """Record what the choice reads, and why it is not more."""
        if found.tokens < found.lookup.keep_tokens <= found.block_tokens and reason in _NO_FAULT:
            reason = types_pb2.MISS_REASON_NOT_TRIMMABLE
        found.reason = reason or (types_pb2.MISS_REASON_UNSPECIFIED if found.tokens else types_pb2.MISS_REASON_ABSENT)
        found.load_bytes = sum(file.size_bytes for _, file in found.wanted_files())
