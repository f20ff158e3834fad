"""Blocks and pieces of a store that a benchmark has to itself; memory is taken when one is used first."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.kernels import Kernels
from inference_service.engine.paged.sequence import Checkpoint
from inference_service.engine.paged.store import NO_KERNELS, KVStore

_MANY = 1 << 24


class Places:
    """A store that grows, and what of it is free. Engine thread only."""

    def __init__(self, geometry: Geometry, codecs: Sequence[KVCodec] = (), kernels: Kernels = NO_KERNELS) -> None:
        self.geometry = geometry
        self.store = KVStore(geometry, _MANY, _MANY, codecs, segments=(1, 1), kernels=kernels)
        self._blocks, self._pieces = _Numbers(), _Numbers()

    def take(self, tokens: int, checkpoints: int = 1) -> "Place":
        """Return a place for a sequence that grows to so many tokens, and for its checkpoints."""
        pieces = (1 + checkpoints) * self.geometry.checkpoint_pieces
        blocks = self._blocks.take(-(-tokens // BLOCK_TOKENS))
        return Place(self, blocks, self._pieces.take(pieces), blocks)

    def sharing(self, first: "Place", blocks: int, tokens: int) -> "Place":
        own = self._blocks.take(-(-tokens // BLOCK_TOKENS) - blocks)
        pieces = self._pieces.take(2 * self.geometry.checkpoint_pieces)
        return Place(self, [*first.blocks[:blocks], *own], pieces, own, first)

    def give_back(self, blocks: list[int], pieces: list[int]) -> None:
        self._blocks.give_back(blocks)
        self._pieces.give_back(pieces)

    def shrink(self) -> None:
        self.store.release(self._blocks.free, self._pieces.free)


@dataclass(eq=False)
class Place:
    """Blocks and pieces of a sequence; `own` blocks are its own, the others `first`'s."""

    places: Places
    blocks: list[int]
    pieces: list[int]
    own: list[int]
    first: "Place | None" = field(default=None, repr=False)

    def nbytes(self, blocks: int, checkpoint: Checkpoint | None) -> int:
        store, states = self.places.store, self.places.geometry.states is not None
        window = 0 if store.windows is None or checkpoint is None else store.windows.layout.nbytes
        pieces = len(checkpoint.pieces) - states if checkpoint is not None else 0
        return blocks * store.full.layout.nbytes + pieces * window + self.places.geometry.state_bytes

    def __del__(self) -> None:
        self.places.give_back(self.own, self.pieces)


class _Numbers:
    def __init__(self) -> None:
        self.free: list[int] = []
        self._end = 0

    def take(self, count: int) -> list[int]:
        while len(self.free) < count:
            heapq.heappush(self.free, self._end)
            self._end += 1
        return [heapq.heappop(self.free) for _ in range(count)]

    def give_back(self, numbers: list[int]) -> None:
        for number in numbers:
            heapq.heappush(self.free, number)
