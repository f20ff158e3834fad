"""The pool takes the device's memory as it needs it, and gives it back when others do: segment by segment."""

from collections.abc import Callable, Iterable, Sequence

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
        go, by default all in the order of eviction, as few as empty a segment; nobody where not even all would do.
        """
        going = self._pool.close_free()
        freed, full, pieces = going.nbytes, going.full, going.pieces
        keys = list(self._hot if evictable is None else evictable)
        if wanted_bytes - freed <= self._pool.open_bytes:
            while freed < wanted_bytes and (victims := self._emptying(keys)):
                keys = [key for key in keys if key not in victims]
                self.evict(victims)
                going = self._pool.close_free()
                freed, full, pieces = freed + going.nbytes, full + going.full, pieces + going.pieces
        return Closed(full, pieces, freed)

    def evict(self, victims: Sequence[AgentKey]) -> None:
        """Drop the KV of these idle agents."""
        for key in victims:
            self._hot.drop(key)
        if victims:
            self.evicted(len(victims))

    def _emptying(self, keys: Sequence[AgentKey]) -> list[AgentKey]:
        """Those of the first of these agents that keep a segment, the one that the fewest of them keep; else none."""
        tables = self._hot.tables(keys)
        full, pieces = [table.blocks for table in tables], [table.pieces for table in tables]
        for pool, places in ((self._pool.full, full), (self._pool.pieces, pieces)):
            if pool.segment.block_bytes and (found := pool.emptied_by(places)) is not None:
                segment, count = found
                first = zip(keys[:count], places, strict=False)
                return [key for key, place in first if segment in map(pool.segment_of, place)]
        return []
