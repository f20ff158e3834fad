"""The pool takes the device's memory as it needs it, and gives it back when others do: segment by segment."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from agentmem.validation import AgentKey
from inference_service.pool.blocks import Segment
from inference_service.pool.kv import Closed, HotAgents, KVPool, Space

_SEGMENTS = 16
_LEAST_BYTES = 64 << 20


def segment_of(blocks: int, block_bytes: int) -> Segment:
    """A sixteenth of an arena of so many blocks, or as much as is worth an allocation; all, if it takes nothing."""
    least = -(-_LEAST_BYTES // block_bytes) if block_bytes else blocks
    return Segment(max(1, min(blocks, max(-(-blocks // _SEGMENTS), least))), block_bytes)


class PoolGrowth:
    """Opens and closes a pool's segments. Event loop only.

    A segment that is open is promised to the pool, and taken when something is written there. One that is closed holds
    nothing; its memory is given back by `closed`, in the order of what is asked of the engine's thread, so before
    anything that is admitted later.
    """

    def __init__(self, pool: KVPool, hot: HotAgents) -> None:
        self._pool = pool
        self._hot = hot
        self.closed: Callable[[Closed], None] = lambda segments: None  # noqa: ARG005
        """Called with segments whose memory can be given back."""
        self.evicted: Callable[[int], None] = lambda agents: None  # noqa: ARG005
        """Called with how many idle agents lost their KV."""

    def grow(self, wanted: Space, spare_bytes: int) -> None:
        """Open segments until there is that much free, as far as there are some and the bytes suffice."""
        for pool, count in ((self._pool.full, wanted.blocks), (self._pool.pieces, wanted.pieces)):
            while pool.free < count and pool.closed and pool.segment.nbytes <= spare_bytes:
                pool.open()
                spare_bytes -= pool.segment.nbytes

    def shrink(self, wanted_bytes: int, evictable: Iterable[AgentKey] | None = None) -> int:
        """As `give_up`; bytes given back, once the engine comes to it."""
        going = self.give_up(wanted_bytes, evictable)
        if going.full or going.pieces:
            self.closed(going)
        return going.nbytes

    def give_up(self, wanted_bytes: int, evictable: Iterable[AgentKey] | None = None) -> Closed:
        """Close the segments that are free, and if that is not enough those that idle agents leave.

        Their memory is the caller's to give back, before anything else is written. The first of the evictable agents
        go, by default all in the order of eviction, as few as leave enough segments; none where all would not.
        """
        closed = self._pool.close_free()
        victims = self._leaving(wanted_bytes - closed.nbytes, list(self._hot if evictable is None else evictable))
        if not victims:
            return closed
        self.evict(victims)
        left = self._pool.close_free()
        return Closed(closed.full + left.full, closed.pieces + left.pieces, closed.nbytes + left.nbytes)

    def evict(self, victims: Sequence[AgentKey]) -> None:
        """Drop the KV of these idle agents."""
        for key in victims:
            self._hot.drop(key)
        if victims:
            self.evicted(len(victims))

    def _leaving(self, lacking_bytes: int, keys: Sequence[AgentKey]) -> list[AgentKey]:
        """Those of the first of these agents that keep segments of so many bytes; none where all keep less."""
        tables = self._hot.tables(keys)
        emptied = []
        full, pieces = [table.blocks for table in tables], [table.pieces for table in tables]
        for pool, places in ((self._pool.full, full), (self._pool.pieces, pieces)):
            if pool.segment.block_bytes:
                emptied += [(count, segment, pool, places) for segment, count in pool.emptied_by(places).items()]
        victims: set[AgentKey] = set()
        for count, segment, pool, places in sorted(emptied, key=itemgetter(0)):
            if lacking_bytes <= 0:
                break
            lacking_bytes -= pool.bytes_of(segment)
            users = zip(keys[:count], places, strict=False)
            victims |= {key for key, place in users if segment in map(pool.segment_of, place)}
        return [key for key in keys if key in victims] if lacking_bytes <= 0 else []
