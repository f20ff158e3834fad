"""What was found for one plan, in the pool and in files, and what it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmem.blockfile import BlockHeader
from agentmem.keys import AgentKey
from agentmem.v1 import cache_store_pb2, types_pb2
from inference_service.memory.choice import Choice, choose_blocks, choose_position
from inference_service.memory.restore import Lookup
from inference_service.memory.windows import WindowCandidate, stored_tokens
from inference_service.models.loading import LoadedModel
from inference_service.pool.admission import Room
from inference_service.pool.kv import Table
from inference_service.storage.client import FileName, Opened
from inference_service.turns.planned import Planned

Files = Mapping[bytes, cache_store_pb2.StoredFile]


@dataclass
class Search:
    """Blocks and windows that were found, by chain hash."""

    model: LoadedModel
    namespace: str
    lookup: Lookup
    candidates: tuple[WindowCandidate, ...]
    blocks: dict[bytes, int]
    windows: dict[bytes, Table]
    files: dict[bytes, cache_store_pb2.StoredFile] = field(default_factory=dict)
    window_files: dict[bytes, cache_store_pb2.StoredFile] = field(default_factory=dict)

    @classmethod
    def in_pool(cls, key: AgentKey, model: LoadedModel, planned: Planned) -> "Search":
        """Begin with what is in the pool. `hold` it before anything else can happen, if it is to be used."""
        pool, lookup, candidates = model.memory.pool, planned.lookup, planned.windows
        blocks = {name: block for name in lookup.hashes() if (block := pool.full.find(name)) is not None}
        windows = {c.name: table for c in candidates if (table := pool.find_window(c.name)) is not None}
        return cls(model, key.namespace, lookup, candidates, blocks, windows)

    def hold(self, room: Room) -> None:
        """Keep what is in the pool there as long as the room lasts."""
        windows = [Table(0, (), table.window_tokens, table.pieces) for table in self.windows.values()]
        for table in (Table(0, tuple(self.blocks.values())), *windows):
            self.model.memory.pool.acquire(table)
            room.pins.append(table)

    def choose(self) -> Choice:
        """The most that can be reused."""
        blocks = choose_blocks(self.lookup, self.blocks, self.files)
        sliding = self.model.geometry.sliding
        if sliding is None or sliding.window is None:
            return blocks
        stored = {
            **stored_tokens(self.candidates, self.window_files),
            **{name: table.window_tokens for name, table in self.windows.items()},
        }
        return choose_position(blocks, self.candidates, stored, sliding.window)

    @property
    def missing(self) -> list[bytes]:
        """Names of the blocks, of which any would do, for want of which there is not more; see Lookup."""
        return self.lookup.missing({*self.blocks, *self.files})

    def may_have_more(self, choice: Choice) -> bool:
        """Whether files could give more than a choice of what is in the pool."""
        blocks = self.block_tokens
        windows = (min(candidate.usable_tokens, blocks) for candidate in self.candidates)
        return bool(self.missing) or max(windows, default=0) > choice.tokens

    @property
    def block_tokens(self) -> int:
        """Tokens that there are blocks for, whatever windows there are."""
        return choose_blocks(self.lookup, self.blocks, self.files).tokens

    def take(self, opened: Opened) -> None:
        """Take in what the store has."""
        self.files = dict(opened.files)
        self.window_files = dict(opened.windows)

    def wanted(self, choice: Choice) -> list[tuple[BlockHeader, cache_store_pb2.StoredFile]]:
        """The files that a choice needs, with the headers that they must have."""
        wanted = [(c.header, self.files[c.header.chain_hash]) for c in choice.warm]
        if choice.window is not None and choice.window.name not in self.windows:
            file = self.window_files[choice.window.name]
            wanted.append((choice.window.header(self.model.fingerprint, self.namespace, file.token_count), file))
        return wanted

    def take_fetched(self, name: FileName, file: cache_store_pb2.StoredFile) -> None:
        """A file of tier remote is on the disk now. It stays one of tier remote, for that is where it was found."""
        found = cache_store_pb2.StoredFile()
        found.CopyFrom(file)
        found.tier = types_pb2.TIER_REMOTE
        self._files(name)[name.chain_hash] = found

    def remote_tokens(self, choice: Choice) -> int:
        """Tokens of a choice whose blocks were found in the object store only."""
        return sum(
            candidate.usable_tokens
            for candidate in choice.warm
            if self.files[candidate.header.chain_hash].tier == types_pb2.TIER_REMOTE
        )

    def refuse(self, name: FileName) -> None:
        """A file turned out to be bad."""
        del self._files(name)[name.chain_hash]

    def windows_on_disk(self, keep_tokens: int) -> dict[int, int]:
        """Stored tokens by position, of windows of the sequence's beginning that is the ledger's."""
        stored = stored_tokens(self.candidates, self.window_files)
        return {c.position: stored[c.name] for c in self.candidates if c.name in stored and c.position <= keep_tokens}

    def _files(self, name: FileName) -> dict[bytes, cache_store_pb2.StoredFile]:
        return self.window_files if name.kind == cache_store_pb2.FILE_KIND_WINDOW else self.files
