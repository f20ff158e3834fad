"""The device's memory, its division (pure), and one model's part."""

import sys
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.hints import TurnHints
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry
from inference_service.pool.admission import Admission, MemoryRequest, Reservation
from inference_service.pool.blocks import PoolError, Segment
from inference_service.pool.growing import segment_of
from inference_service.pool.hot import HotAgents
from inference_service.pool.kv import KVPool, Space, Table

TYPICAL_TOKENS = 4_096

MOST_CONTEXTS = 32
"""Agents at the end of their context in the largest default pool."""

MOST_EMPTY_BLOCKS = 1 << 16
"""Without full attention; each is checked after a turn."""


class Budget:
    """Promises of the device's memory. Event loop only. `obtainable` returns what this process could have, its own
    included.
    """

    def __init__(self, obtainable: Callable[[], int]) -> None:
        self._obtainable = obtainable
        self._promises: dict[Hashable, Callable[[], int]] = {}

    def promise(self, owner: Hashable, promised: Callable[[], int]) -> None:
        self._promises[owner] = promised

    def withdraw(self, owner: Hashable) -> None:
        self._promises.pop(owner, None)

    @contextmanager
    def promised(self, nbytes: int) -> Iterator[None]:
        owner = object()
        self.promise(owner, lambda: nbytes)
        try:
            yield
        finally:
            self.withdraw(owner)

    def spare(self) -> int:
        """Negative if others have taken what was promised."""
        return self._obtainable() - sum(promised() for promised in self._promises.values())


@dataclass(frozen=True)
class Sizes:
    space: Space
    batch_bytes: int
    segment_bytes: int = sys.maxsize

    @property
    def tokens(self) -> int:
        return self.space.blocks * BLOCK_TOKENS

    def pool_bytes(self, geometry: Geometry) -> int:
        return self.tokens * geometry.bytes_per_token + self.space.pieces * geometry.piece_bytes

    def segments(self, geometry: Geometry) -> tuple[Segment, Segment]:
        blocks = segment_of(self.space.blocks, BLOCK_TOKENS * geometry.bytes_per_token, self.segment_bytes)
        return blocks, segment_of(self.space.pieces, geometry.piece_bytes, self.segment_bytes)


def sizes(
    free_bytes: int,
    geometry: Geometry,
    context_length: int,
    pool_bytes: int | None = None,
    typical_tokens: int = TYPICAL_TOKENS,
    *,
    arrays: bool = True,
) -> Sizes:
    """Split the memory that weights leave. The pool gets all of it, at most MOST_CONTEXTS agents' contexts; beside
    `arrays` half, or a typical agent's.

    A hybrid model's pool gets a window for each `typical_tokens`. Without full attention it has blocks for its agents'
    contexts, at most MOST_EMPTY_BLOCKS or one agent's.
    """
    free_bytes = max(0, free_bytes)
    pieces = geometry.checkpoint_pieces
    typical, longest = (
        tokens * geometry.bytes_per_token + pieces * geometry.piece_bytes for tokens in (typical_tokens, context_length)
    )
    most = max(free_bytes // 2, min(free_bytes, typical)) if arrays else free_bytes
    pool = min(most, MOST_CONTEXTS * longest) if pool_bytes is None else pool_bytes
    batch = max(0, free_bytes - pool) if arrays else 0
    agents = pool / typical
    blocks = int(agents * typical_tokens / BLOCK_TOKENS)
    if not geometry.bytes_per_token:
        context_blocks = -(-context_length // BLOCK_TOKENS)
        blocks = min(int(agents) * context_blocks, max(context_blocks, MOST_EMPTY_BLOCKS))
    return Sizes(Space(blocks, int(agents * pieces)), batch)


def agents_that_fit(space: Space, geometry: Geometry, tokens: int) -> int:
    by_blocks = space.blocks // -(-tokens // BLOCK_TOKENS)
    return min(by_blocks, space.pieces // geometry.checkpoint_pieces) if geometry.checkpoint_pieces else by_blocks


class ModelMemory:
    """Event loop only."""

    def __init__(self, geometry: Geometry, sizes: Sizes, hints: TurnHints, *, arrays: bool = False) -> None:
        self.sizes = sizes
        self.pool = KVPool(sizes.space, geometry.checkpoint_pieces, sizes.segments(geometry))
        self.hot = HotAgents(self.pool, hints)
        array_bytes = geometry.array_bytes if arrays else lambda tokens: 0  # noqa: ARG005
        self.admission = Admission(self.pool, self.hot, array_bytes, sizes.batch_bytes)
        self.evicted: Callable[[], object] = lambda: None
        self.in_flight: Callable[[], Iterable[Table]] = list
        """Tables held elsewhere."""
        self.wait = 30.0
        self._geometry = geometry

    @asynccontextmanager
    async def reserve(self, request: MemoryRequest) -> AsyncIterator[Reservation]:
        """Take memory and hot state, which is put back after a failure. Raises as Admission.reserve."""
        with self._used(request.key, await self.admission.reserve(request, self.wait)) as reservation:
            yield reservation

    @contextmanager
    def reserve_now(self, request: MemoryRequest) -> Iterator[Reservation | None]:
        reservation = self.admission.reserve_now(request)
        with nullcontext() if reservation is None else self._used(request.key, reservation):
            yield reservation

    @contextmanager
    def _used(self, key: AgentKey, reservation: Reservation) -> Iterator[Reservation]:
        reservation.hot = self.hot.take(key)
        try:
            yield reservation
        except PoolError as error:
            self.pool.fail(error)
            raise
        finally:
            if reservation.hot is not None and reservation.superseded:
                self.pool.release(reservation.hot.table)
            elif reservation.hot is not None:
                self.hot.put(key, reservation.hot)
            self.admission.release(reservation)
            self.check_integrity()

    @property
    def promised_bytes(self) -> int:
        return self.pool.open_bytes + self.admission.promised_bytes

    def evict(self, key: AgentKey) -> int:
        """Return the bytes freed."""
        blocks, pieces = self.pool.full.free, self.pool.pieces.free
        if key in self.hot:
            self.evicted()
        self.hot.forget(key)
        freed_blocks, freed_pieces = self.pool.full.free - blocks, self.pool.pieces.free - pieces
        return freed_blocks * BLOCK_TOKENS * self._geometry.bytes_per_token + freed_pieces * self._geometry.piece_bytes

    def check_integrity(self) -> None:
        """If nothing is reserved, check that references are those of `hot` or `in_flight`."""
        if not self.admission.idle:
            return
        try:
            self.pool.check_integrity([*self.hot.tables(), *self.in_flight()])
        except PoolError as error:
            self.pool.fail(error)
