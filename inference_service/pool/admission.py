"""Admission: a turn gets all memory that it can grow to before it starts, or waits, or is refused. So none runs out of
memory or is evicted.

No turn is refused because of checkpoints; it waits for one's memory, if it would have that when alone. Without memory
for K and V as arrays passes are slower.

If other processes take the device's memory, the pool gives back free segments, then those of idle agents; turns look
again every second.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from agentmem.errors import FailedPrecondition, ResourceExhausted
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.sizes import byte_size
from agentmem.validation import AgentKey
from inference_service.pool.growing import PoolGrowth, Pressure
from inference_service.pool.hot import Evictable, HotAgents, HotState
from inference_service.pool.kv import KVPool, Space, Table

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class MemoryRequest:
    """`names` are the prompt's full blocks. `computes` is False for a prefetch."""

    key: AgentKey
    names: Sequence[bytes]
    tokens: int
    checkpoints: int = 0
    computes: bool = True


@dataclass(eq=False)
class Reservation:
    """One turn's blocks and pieces to write to, and `pins`, references on those that it starts from.

    `superseded`: a commit replaced the `hot` state. `shared` are blocks of others.
    """

    tokens: int
    checkpoints: int = 0
    shared: tuple[int, ...] = ()
    array_bytes: int = 0
    hot: HotState | None = None
    superseded: bool = False
    places: tuple[int, ...] = ()
    blocks: list[int] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    named: int = 0
    """Computed full blocks of the prompt that others find. Engine thread."""
    given: set[int] = field(default_factory=set)
    """Pieces of checkpoints that others find. Engine thread."""
    pins: list[Table] = field(default_factory=list)

    def claim(self, pool: KVPool, table: Table) -> Table:
        """Take references on a table: own blocks and pieces leave the reservation."""
        for own, wanted, of in ((self.blocks, table.blocks, pool.full), (self.pieces, table.pieces, pool.pieces)):
            mine = set(own).intersection(wanted)
            of.acquire(each for each in wanted if each not in mine)
            own[:] = [each for each in own if each not in mine]
        return table


class Admission:
    """In the order of arrival. Event loop only. `limit_bytes` bounds arrays."""

    def __init__(
        self,
        pool: KVPool,
        hot: HotAgents,
        array_bytes: Callable[[int], int] = lambda tokens: 0,  # noqa: ARG005
        limit_bytes: int = 0,
    ) -> None:
        self._pool = pool
        self._hot = hot
        self._array_bytes = array_bytes
        self._limit_bytes = limit_bytes
        self._reservations: list[Reservation] = []
        self._waiters: list[MemoryRequest] = []
        self._changed = asyncio.Event()
        pool.on_release = self._wake
        self.growth = PoolGrowth(pool, hot)
        self.spare: Callable[[], int] = lambda: sys.maxsize
        """The device's bytes that may still be promised."""
        self.pressure: Callable[[], Pressure] = lambda: Pressure.NORMAL
        self.last_resort: Callable[[], None] = lambda: None
        """Frees what could be computed again, before a refusal."""

    @property
    def idle(self) -> bool:
        return not self._reservations and not self._waiters

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def promised_bytes(self) -> int:
        return sum(room.array_bytes for room in self._reservations)

    async def reserve(self, request: MemoryRequest, seconds: float) -> Reservation:
        """Wait for at most `seconds`; `release` gives it back. Raises FailedPrecondition if it would not fit alone,
        ResourceExhausted.
        """
        self._check_fits(request)
        self._waiters.append(request)
        try:
            async with asyncio.timeout(seconds):
                while (reservation := self._next(request)) is None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await self._changed.wait()
        except TimeoutError:
            self.last_resort()
            if (reservation := self._next(request, least_checkpoints=0)) is not None:
                return reservation
            raise ResourceExhausted(self._what_is_missing(), retry_after=max(1.0, seconds)) from None
        finally:
            self._waiters.remove(request)
            self._wake()
        return reservation

    def reserve_now(self, request: MemoryRequest) -> Reservation | None:
        """Evict only agents that should go before this one, if no request waits. Raises FailedPrecondition if it would
        not fit alone.
        """
        self._check_fits(request)
        return None if self._waiters else self._reserved(request, lambda: self._hot.evictable_before(request.key))

    def capture_at_most(self, reservation: Reservation, checkpoints: int) -> None:
        if checkpoints < reservation.checkpoints:
            reservation.checkpoints = checkpoints
            own = (1 + checkpoints) * self._pool.checkpoint_pieces
            self._pool.release(Table(0, (), 0, tuple(reservation.pieces[own:])))
            del reservation.pieces[own:]

    def release(self, reservation: Reservation) -> None:
        self._reservations.remove(reservation)
        for pinned in reservation.pins:
            self._pool.release(pinned)
        self._pool.release(Table(0, tuple(reservation.blocks), 0, tuple(reservation.pieces)))

    def _check_fits(self, request: MemoryRequest) -> None:
        if not self._pool.fits(self._pool.space(request.tokens)):
            raise FailedPrecondition(
                f"the request can grow to {request.tokens} tokens, which is more than the memory for KV holds; lower "
                "max_tokens, shorten the prompt, or start the worker with more (--pool-bytes)"
            )

    def _next(self, request: MemoryRequest, least_checkpoints: int = 1) -> Reservation | None:
        """Evict agents whose turns wait last, its own after them."""
        if self._waiters[0] is not request:
            return None
        waiting = {each.key for each in self._waiters}
        return self._reserved(
            request, lambda: sorted(self._hot, key=lambda key: (key == request.key, key in waiting)), least_checkpoints
        )

    def _reserved(
        self, request: MemoryRequest, evictable: Callable[[], list[Evictable]], least_checkpoints: int = 1
    ) -> Reservation | None:
        pool, each = self._pool, self._pool.checkpoint_pieces
        with self._pinned(request.names[: request.tokens // BLOCK_TOKENS]) as pins:
            if (spare := self.spare()) < 0:
                spare += self.growth.shrink(-spare, evictable())
            if spare < 0:
                return None
            space = pool.space(request.tokens)
            blocks = space.blocks - len(pins.blocks)
            if self._may_grow(request, Space(blocks, space.pieces), evictable):
                self.growth.grow(Space(blocks, space.pieces + request.checkpoints * each), spare)
            alone = (pool.pieces.opened - self._window_pieces(request.key)) // each - 1 if each else 0
            least = max(0, min(least_checkpoints, request.checkpoints, alone))
            wanted = Space(blocks, space.pieces + least * each)
            victims = self._victims(wanted, evictable)
            if victims is None:
                return None
            self.growth.evict(victims)
            more = min(request.checkpoints - least, (pool.pieces.free - wanted.pieces) // each) if each else 0
            reservation = Reservation(request.tokens, least + more, pins.blocks, self._arrays(request))
            reservation.blocks = pool.full.allocate(wanted.blocks, near=pins.blocks[-1] if pins.blocks else 0)
            reservation.places = (*pins.blocks, *reservation.blocks)
            reservation.pieces = pool.pieces.allocate(wanted.pieces + more * each)
            pool.acquire(pins)
            reservation.pins.append(pins)
        self._reservations.append(reservation)
        return reservation

    def _may_grow(self, request: MemoryRequest, wanted: Space, evictable: Callable[[], list[Evictable]]) -> bool:
        """Under a warning a turn that is alone may have what no eviction gives."""
        pressure = self.pressure()
        alone = pressure is Pressure.WARNING and request.computes and not self._reservations
        return pressure is Pressure.NORMAL or (alone and self._victims(wanted, evictable) is None)

    def _window_pieces(self, key: AgentKey) -> int:
        own = self._hot.get(key)
        return len(own.table.pieces) if own is not None else 0

    def _arrays(self, request: MemoryRequest) -> int:
        nbytes = self._array_bytes(request.tokens) if request.computes else 0
        if not nbytes or self.promised_bytes + nbytes > self._limit_bytes or self.pressure() is Pressure.CRITICAL:
            return 0
        return nbytes if nbytes <= self.spare() else 0

    def _what_is_missing(self) -> str:
        spare = self.spare()
        grows = [pool.segment.nbytes for pool in (self._pool.full, self._pool.pieces) if pool.closed]
        if grows and (pressure := self.pressure()) is not Pressure.NORMAL:
            return (
                f"the system is short of memory ({pressure.name.lower()}), and the pool of KV does not grow; end "
                "other processes, lower max_tokens, or try again"
            )
        if spare < max(grows, default=0):
            return (
                f"the device's memory is taken: {byte_size(max(0, spare))} are left for the pool of KV; end other "
                "processes on the device, lower max_tokens, or try again"
            )
        return "running requests have all the memory for KV; try again, or start the worker with more (--pool-bytes)"

    @contextmanager
    def _pinned(self, names: Sequence[bytes]) -> Iterator[Table]:
        table = Table(0, tuple(self._pool.full.run(names)))
        self._pool.acquire(table)
        try:
            yield table
        finally:
            self._pool.release(table)

    def _victims(self, wanted: Space, evictable: Callable[[], list[Evictable]]) -> list[Evictable] | None:
        """Return the fewest agents that free enough, or None."""
        pool = self._pool
        lacking_blocks, lacking_pieces = wanted.blocks - pool.full.free, wanted.pieces - pool.pieces.free
        if lacking_blocks <= 0 and lacking_pieces <= 0:
            return []
        keys = evictable()
        tables = self._hot.tables(keys)
        blocks = pool.full.freed_by(table.blocks for table in tables)
        pieces = pool.pieces.freed_by(table.pieces for table in tables)
        freed, freed_pieces = set[int](), set[int]()
        for count, more in enumerate(zip(blocks, pieces, strict=True), 1):
            freed.update(more[0])
            freed_pieces.update(more[1])
            if len(freed) >= lacking_blocks and len(freed_pieces) >= lacking_pieces:
                going = zip(keys[:count], tables, strict=False)
                return [k for k, t in going if not (freed.isdisjoint(t.blocks) and freed_pieces.isdisjoint(t.pieces))]
        return None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
