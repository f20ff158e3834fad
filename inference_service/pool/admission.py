"""Who may begin: a turn gets all the memory that it can grow to before it starts, or waits for it, or is refused.

So nothing in flight ever runs out of memory, and nothing in flight is ever evicted. Blocks come from the pool; what
decoding takes besides, the padded batches and one transient copy, is charged against a budget of its own.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentmem.errors import FailedPrecondition, ResourceExhausted
from agentmem.keys import AgentKey
from inference_service.pool.blocks import PoolError
from inference_service.pool.hot import HotAgents, HotState
from inference_service.pool.kv import KVPool, Space, Table


@dataclass(frozen=True, eq=False)
class Demand:
    """What an agent's turn can grow to: `tokens` of prompt and answer. `names` are those of the prompt's full blocks.

    A turn that keeps nothing takes no blocks of its own.
    """

    key: AgentKey
    names: Sequence[bytes]
    tokens: int
    keeps: bool


@dataclass(eq=False)
class Room:
    """The memory of one turn: blocks and pieces to write to, and what is in the pool that it starts from.

    `hot` is the agent's state, which nobody can evict meanwhile; `superseded` says that a commit has made it history.
    """

    tokens: int
    hot: HotState | None = None
    superseded: bool = False
    blocks: list[int] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    pins: list[Table] = field(default_factory=list)

    def table(self, tokens: int, shared: Sequence[int], space: Space, window_tokens: int = 0) -> Table:
        """A table of `space`, beginning with blocks that are shared; the rest, and its references, come from here.

        Raises PoolError if that is more than there is.
        """
        if space.blocks - len(shared) > len(self.blocks) or space.pieces > len(self.pieces):
            raise PoolError(f"a turn needs {space}, shares {len(shared)} blocks, and has room for {len(self.blocks)}")
        new = [self.blocks.pop() for _ in range(space.blocks - len(shared))]
        pieces = [self.pieces.pop() for _ in range(space.pieces)]
        return Table(tokens, (*shared, *new), window_tokens, tuple(pieces))


class Admission:
    """Gives turns their room, in the order of arrival. Event loop only.

    `batch_bytes` says what decoding rows of given lengths takes, `limit_bytes` how much that may be. `evicted` is told
    how many idle agents lost their KV.
    """

    def __init__(
        self,
        pool: KVPool,
        hot: HotAgents,
        batch_bytes: Callable[[Sequence[int]], int],
        limit_bytes: int,
    ) -> None:
        self._pool = pool
        self._hot = hot
        self._batch_bytes = batch_bytes
        self._limit_bytes = limit_bytes
        self._rooms: list[Room] = []
        self._queue: list[Demand] = []
        self._changed = asyncio.Event()
        pool.on_release = self._wake
        self.evicted: Callable[[int], None] = lambda agents: None  # noqa: ARG005
        self.last_resort: Callable[[], None] = lambda: None
        """Called before a request is refused: lets go of what could be computed again."""

    @property
    def idle(self) -> bool:
        """Nobody has room or waits for it."""
        return not self._rooms and not self._queue

    async def enter(self, demand: Demand, patience: float) -> Room:
        """Wait until there is room, at most `patience` seconds. Give it back by `leave`.

        Raises FailedPrecondition for what would not fit if it were alone, ResourceExhausted when the time is over.
        """
        self._check_fits(demand)
        self._queue.append(demand)
        try:
            async with asyncio.timeout(patience):
                while self._queue[0] is not demand or (room := self._room(demand, self._going_for)) is None:
                    await self._changed.wait()
        except TimeoutError:
            self.last_resort()
            if self._queue[0] is demand and (room := self._room(demand, self._going_for)) is not None:
                return room
            raise ResourceExhausted(
                "running requests have all the memory for KV; try again, or start the worker with more (--pool-bytes)",
                retry_after=max(1.0, patience),
            ) from None
        finally:
            self._queue.remove(demand)
            self._wake()
        return room

    def enter_at_once(self, demand: Demand) -> Room | None:
        """Room for what nobody waits for; None if there is none now. Give it back by `leave`.

        Nothing goes for it but agents that should be evicted before this one, and it overtakes nobody who waits.
        Raises FailedPrecondition for what would not fit if it were alone.
        """
        self._check_fits(demand)
        return None if self._queue else self._room(demand, lambda demand: self._hot.yielding(demand.key))

    def leave(self, room: Room) -> None:
        """Give back what is left of a room."""
        self._rooms.remove(room)
        for pinned in room.pins:
            self._pool.release(pinned)
        self._pool.release(Table(0, tuple(room.blocks), 0, tuple(room.pieces)))

    def _check_fits(self, demand: Demand) -> None:
        fits = self._pool.fits(self._pool.space(demand.tokens)) or not demand.keeps
        if not fits or self._batch_bytes([demand.tokens]) > self._limit_bytes:
            raise FailedPrecondition(
                f"the request can grow to {demand.tokens} tokens, which is more than the memory for KV holds; lower "
                "max_tokens, shorten the prompt, or start the worker with more (--pool-bytes, --batch-bytes)"
            )

    def _room(self, demand: Demand, candidates: Callable[[Demand], list[AgentKey]]) -> Room | None:
        if self._batch_bytes([*(room.tokens for room in self._rooms), demand.tokens]) > self._limit_bytes:
            return None
        room = Room(demand.tokens)
        with self._pinned(demand.names) as pins:
            wanted = self._wanted(demand, len(pins.blocks))
            victims = self._victims(wanted, lambda: candidates(demand))
            if victims is None:
                return None
            for key in victims:
                self._hot.drop(key)
            if victims:
                self.evicted(len(victims))
            room.blocks = self._pool.full.allocate(wanted.blocks)
            room.pieces = self._pool.sliding.allocate(wanted.pieces)
            self._pool.acquire(pins)
            room.pins.append(pins)
        self._rooms.append(room)
        return room

    def _wanted(self, demand: Demand, shared: int) -> Space:
        if not demand.keeps:
            return Space(0)
        space = self._pool.space(demand.tokens)
        return Space(space.blocks - shared, space.pieces)

    @contextmanager
    def _pinned(self, names: Sequence[bytes]) -> Iterator[Table]:
        """The longest run of these blocks that is in the pool, held."""
        blocks = []
        for name in names:
            block = self._pool.full.find(name)
            if block is None:
                break
            blocks.append(block)
        table = Table(0, tuple(blocks))
        self._pool.acquire(table)
        try:
            yield table
        finally:
            self._pool.release(table)

    def _going_for(self, demand: Demand) -> list[AgentKey]:
        """Idle agents in the order in which they go for a turn: last those whose turns wait, and then its own."""
        waiting = {each.key for each in self._queue}
        return sorted(self._hot, key=lambda key: (key == demand.key, key in waiting))

    def _victims(self, wanted: Space, candidates: Callable[[], list[AgentKey]]) -> list[AgentKey] | None:
        """The first of the candidates, as few as make room; None if all are not enough.

        Who would free nothing stays: its blocks are being written, or others who stay have them, too.
        """
        pool = self._pool
        lacking_blocks, lacking_pieces = wanted.blocks - pool.full.free, wanted.pieces - pool.sliding.free
        if lacking_blocks <= 0 and lacking_pieces <= 0:
            return []
        keys = candidates()
        tables = self._hot.tables(keys)
        blocks = pool.full.freed_by(table.blocks for table in tables)
        pieces = pool.sliding.freed_by(table.pieces for table in tables)
        for count, (freed_blocks, freed_pieces) in enumerate(zip(blocks, pieces, strict=True), 1):
            if freed_blocks >= lacking_blocks and freed_pieces >= lacking_pieces:
                going = dict(zip(keys[:count], tables, strict=False))
                freed = pool.full.freed(table.blocks for table in going.values())
                pieces_freed = pool.sliding.freed(table.pieces for table in going.values())
                return [
                    key
                    for key, table in going.items()
                    if not freed.isdisjoint(table.blocks) or not pieces_freed.isdisjoint(table.pieces)
                ]
        return None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
