"""Growth of a pool by segments, beside other processes."""

import sys
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Self

from inference_service.pool.blocks import Segment
from inference_service.pool.hot import Evictable, HotAgents, Leftover
from inference_service.pool.kv import Closed, KVPool, Space

_SEGMENTS, _MOST_SEGMENTS = 16, 256
_LEAST_BYTES = 64 << 20


def segment_of(blocks: int, block_bytes: int, most_bytes: int = sys.maxsize) -> Segment:
    """Return a sixteenth of an arena, at least 64 MiB, and at most `most_bytes` unless that makes more than 256
    segments.
    """
    least, most = (-(-_LEAST_BYTES // block_bytes), most_bytes // block_bytes) if block_bytes else (blocks, blocks)
    wanted = min(blocks, max(-(-blocks // _SEGMENTS), least), most)
    return Segment(max(1, -(-blocks // _MOST_SEGMENTS), wanted), block_bytes)


class Pressure(IntEnum):
    """The system's."""

    NORMAL = 1
    WARNING = 2
    CRITICAL = 4

    @classmethod
    def of(cls, level: int) -> Self:
        return max(each for each in cls if each <= max(level, cls.NORMAL))

    @property
    def share(self) -> int:
        """A pool gives back one of so many parts, each second."""
        return 4 if self is Pressure.CRITICAL else 16


class PoolGrowth:
    """Event loop only. Open segments take memory when written to; the engine thread gives a closed one's back."""

    def __init__(self, pool: KVPool, hot: HotAgents) -> None:
        self._pool = pool
        self._hot = hot
        self.closed: Callable[[Closed], None] = pool.given_back
        """Has memory given back, then calls `given_back`."""
        self.given_back = pool.given_back
        self.evicted: Callable[[int], None] = lambda agents: None  # noqa: ARG005
        """Counts idle agents that lost their KV."""

    def grow(self, wanted: Space, spare_bytes: int) -> None:
        for pool, count in ((self._pool.full, wanted.blocks), (self._pool.pieces, wanted.pieces)):
            while pool.free < count and pool.closed and pool.segment.nbytes <= spare_bytes:
                pool.open()
                spare_bytes -= pool.segment.nbytes

    def shrink(self, wanted_bytes: int, evictable: Iterable[Evictable] | None = None) -> int:
        going = self.give_up(wanted_bytes, evictable)
        if going.full or going.pieces:
            self.closed(going)
        return going.nbytes

    def yield_to(self, pressure: Pressure, pool_bytes: int) -> None:
        """Close segments one by one, as far as idle agents' go."""
        left = max(1, pool_bytes // pressure.share)
        while left > 0 and (freed := self.shrink(1)):
            left -= freed

    def give_up(self, wanted_bytes: int, evictable: Iterable[Evictable] | None = None) -> Closed:
        """Close free segments, then those that the first idle agents leave, or none. The caller calls `given_back`."""
        closed = self._pool.close_free()
        victims = self._leaving(wanted_bytes - closed.nbytes, list(self._hot if evictable is None else evictable))
        if not victims:
            return closed
        self.evict(victims)
        left = self._pool.close_free()
        return Closed(closed.full + left.full, closed.pieces + left.pieces, closed.nbytes + left.nbytes)

    def evict(self, victims: Sequence[Evictable]) -> None:
        for key in victims:
            self._hot.drop(key)
        if agents := sum(not isinstance(key, Leftover) for key in victims):
            self.evicted(agents)

    def _leaving(self, lacking_bytes: int, keys: Sequence[Evictable]) -> list[Evictable]:
        tables = self._hot.tables(keys)
        emptied = []
        full, pieces = [table.blocks for table in tables], [table.pieces for table in tables]
        for pool, places in ((self._pool.full, full), (self._pool.pieces, pieces)):
            if pool.segment.block_bytes:
                emptied += [(count, segment, pool, places) for segment, count in pool.emptied_by(places).items()]
        victims: set[Evictable] = set()
        for count, segment, pool, places in sorted(emptied, key=itemgetter(0)):
            if lacking_bytes <= 0:
                break
            lacking_bytes -= pool.bytes_of(segment)
            users = zip(keys[:count], places, strict=False)
            victims |= {key for key, place in users if segment in map(pool.segment_of, place)}
        return [key for key in keys if key in victims] if lacking_bytes <= 0 else []
