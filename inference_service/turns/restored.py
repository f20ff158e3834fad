"""KV found for one sequence."""

from collections import Counter
from dataclasses import dataclass, field, replace

from agentmem.kv.blockfile import BLOCK_TOKENS, BlockHeader, FileKind, FileName
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.geometry import HostBuffers, HostTensors
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Checkpoint, Sequence
from inference_service.memory.checkpoints import stored_tokens
from inference_service.memory.match import Reason
from inference_service.memory.restore import NO_LOOKUP, NOTHING_CHOSEN, Choice, Lookup, Place, choose
from inference_service.memory.speeds import Source
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import Reservation
from inference_service.pool.blocks import BlockTokens
from inference_service.pool.kv import Table


def source_of(file: pb.StoredFile) -> Source:
    return Source.NODE if file.on_node else Source.OBJECTS


@dataclass(eq=False)
class Restored:
    """KV found, what of it is taken, and where the sequence goes on.

    `blocks` and `windows` are in the pool, `files` and `window_files` outside, by chain hash. `reason`: why not more is
    taken. `tensors` are empty if read to their block. `room`: where the sequence grows.
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
    room: Reservation | None = None
    _window: HostTensors = field(default_factory=dict)

    @classmethod
    def in_pool(cls, key: AgentKey, model: LoadedModel, lookup: Lookup) -> "Restored":
        """Begin with the pool's; `hold` it before the next await."""
        pool = model.memory.pool
        if not model.geometry.resumes_anywhere:
            lookup = lookup.with_checkpoints(name for name in lookup.own if pool.find_checkpoint(name) is not None)
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
        return self.choice.tokens

    @property
    def by_tier(self) -> list[types_pb2.TierTokens]:
        """Reused tokens by tier, fastest first."""
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
        """Return stored tokens of windows on disk, by position, if any KV is used."""
        if not self.tokens:
            return {}
        stored = stored_tokens(self.lookup.checkpoints, self.window_files)
        found = (window for window in self.lookup.checkpoints if window.name in stored)
        return {window.position: stored[window.name] for window in found if window.position == window.usable_tokens}

    def hold(self, reservation: Reservation) -> None:
        """Pin what is in the pool for the reservation."""
        self.room = reservation
        windows = [Table(0, (), table.window_tokens, table.pieces) for table in self.windows.values()]
        for table in (Table(0, tuple(self.blocks.values())), *windows):
            self.model.memory.pool.acquire(table)
            reservation.pins.append(table)

    def choose(self, min_file_tokens: int) -> Reason:
        """Take the most; return why not more. Fewer than `min_file_tokens` of files are not worth reading."""
        self.choice = self._best()
        if not 0 < self.choice.warm_tokens < min_file_tokens:
            return types_pb2.MISS_REASON_UNSPECIFIED
        self.files.clear()
        self.choice = self._best()
        return types_pb2.MISS_REASON_BELOW_MIN

    @property
    def away(self) -> dict[Source, int]:
        """Bytes to fetch, by source."""
        sizes = Counter[Source]()
        for _, file in self.wanted_files():
            if not file.path:
                sizes[source_of(file)] += file.size_bytes
        return sizes

    def here(self) -> "Restored":
        files, windows = ({n: f for n, f in of.items() if f.path} for of in (self.files, self.window_files))
        here = replace(self, files=files, window_files=windows)
        here.choice = here._best()
        return here

    def _best(self) -> Choice:
        geometry = self.model.geometry
        if geometry.resumes_anywhere:
            return choose(self.lookup, self.blocks, self.files)
        stored = {
            **stored_tokens(self.lookup.checkpoints, self.window_files),
            **{name: table.window_tokens for name, table in self.windows.items()},
        }
        return choose(self.lookup, self.blocks, self.files, stored, geometry.window, exact=geometry.in_order)

    @property
    def missing(self) -> list[bytes]:
        return self.lookup.missing({*self.blocks, *self.files})

    @property
    def block_tokens(self) -> int:
        """Tokens with blocks, whatever windows there are."""
        return choose(self.lookup, self.blocks, self.files).tokens

    @property
    def end(self) -> Place | None:
        """Where another's block could continue; None if all that the agent had is found."""
        if 0 < self.lookup.keep_tokens <= self.block_tokens:
            return None
        return self.lookup.end({*self.blocks, *self.files})

    def files_could_add(self) -> bool:
        windows = (min(window.usable_tokens, self.block_tokens) for window in self.lookup.checkpoints)
        return bool(self.missing) or self.end is not None or max(windows, default=0) > self.choice.tokens

    def wanted_files(self) -> list[tuple[BlockHeader, pb.StoredFile]]:
        """Return files to read, and their headers."""
        wanted = [(c.header, self.files[c.header.chain_hash]) for c in self.choice.warm]
        window = self.choice.checkpoint
        if window is not None and window.name not in self.windows:
            file = self.window_files[window.name]
            wanted.append((window.header(self.model.fingerprint, self.namespace, file.token_count), file))
        return wanted

    def add_fetched(self, name: FileName, file: pb.StoredFile) -> None:
        """Replace a remote file by its local copy, which still counts as remote."""
        found = pb.StoredFile()
        found.CopyFrom(file)
        found.tier = types_pb2.TIER_REMOTE
        self._of_kind(name)[name.chain_hash] = found

    def add(self, place: Place, name: bytes, token_ids: bytes) -> bool:
        """Add a block found by its tokens; False if useless."""
        lookup = self.lookup.with_block(self.model.fingerprint, self.namespace, place, name, token_ids)
        self.lookup = lookup or self.lookup
        return lookup is not None

    def refuse(self, name: FileName) -> None:
        del self._of_kind(name)[name.chain_hash]

    def places(self) -> list[int]:
        """Return the blocks of all that the sequence can grow to."""
        assert self.room is not None
        found = list(self.room.places)
        for index, candidate in enumerate(self.choice.hot):
            if candidate.usable_tokens == BLOCK_TOKENS:
                found[index] = self.blocks[candidate.header.chain_hash]
        return found

    def buffers(self, header: BlockHeader) -> HostBuffers | None:
        """Return the memory of a file's block if it is the host's. Any thread."""
        assert self.room is not None
        index = header.first_token // BLOCK_TOKENS
        if not len(self.room.shared) <= index < len(self.room.places):
            return None
        return self.model.arenas.host_buffers(self.room.places[index], header.token_count)

    def sequence(self) -> Sequence:
        """Begin the sequence, also again. Engine thread. Raises MemoryError."""
        assert self.room is not None
        tensors, self.tensors = self.tensors, {}
        blocks, hot, own = self.places(), self.choice.hot, self.room.shared
        full = [candidate for candidate in hot if candidate.usable_tokens == BLOCK_TOKENS]
        named = self.room.named
        cut = hot[-1] if named <= len(full) < len(hot) else None
        warm = [(candidate, tensors.get(FileName.of(candidate.header))) for candidate in self.choice.warm]
        window = self.choice.checkpoint
        start = Start(
            blocks,
            [piece for piece in list(self.room.pieces) if piece not in self.room.given],
            self.tokens,
            BLOCK_TOKENS * max(len(own), len(full), named),
            None if cut is None else (self.blocks[cut.header.chain_hash], blocks[len(full)]),
            [(blocks[each.header.first_token // BLOCK_TOKENS], file) for each, file in warm if file],
            arrays=self.room.array_bytes > 0,
        )
        if window is not None and (table := self.windows.get(window.name)) is not None:
            start = replace(start, checkpoint=Checkpoint(window.position, table.window_tokens, table.pieces))
        elif window is not None:
            self._window = tensors.get(FileName.window(window.name), self._window)
            start = replace(start, window_file=self._window, window_surplus=self.choice.surplus)
        return self.model.arenas.started(start)

    def _of_kind(self, name: FileName) -> dict[bytes, pb.StoredFile]:
        return self.window_files if name.kind is FileKind.WINDOW else self.files
