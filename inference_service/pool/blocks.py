"""An arena's blocks: free lists, references, names, segments. Pure.

A block's name is its chain hash, so that equal sequences share it; a shared block is never written (copy on write).
Blocks are found by their tokens, too: a sequence that diverges inside one copies the part before.

`allocate` prefers the first segment with room for all, so that the last become empty first.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple, Self

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.ledger import Uint32, ordered, shared_tokens


class PoolError(Exception):
    """The bookkeeping is inconsistent; all in the pool can be computed again."""


class Segment(NamedTuple):
    """Memory taken and given back at once."""

    blocks: int
    block_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block_bytes


class BlockTokens(NamedTuple):
    namespace: str
    parent: bytes
    token_ids: bytes
    """As `ordered` returns them."""

    @classmethod
    def of(cls, namespace: str, parent: bytes, sequence: Uint32, first: int) -> Self:
        return cls(namespace, parent, ordered(sequence[first : first + BLOCK_TOKENS]))


class _Continuations:
    """Blocks by block before and sorted tokens: edges of a radix tree."""

    def __init__(self) -> None:
        self.tokens: dict[bytes, BlockTokens] = {}
        self._there: dict[tuple[str, bytes], list[tuple[bytes, bytes]]] = {}

    def add(self, name: bytes, tokens: BlockTokens) -> None:
        if name not in self.tokens:
            self.tokens[name] = tokens
            insort(self._there.setdefault(tokens[:2], []), (tokens.token_ids, name))

    def remove(self, name: bytes) -> None:
        if (tokens := self.tokens.pop(name, None)) is None:
            return
        there = self._there[tokens[:2]]
        del there[bisect_left(there, (tokens.token_ids, name))]
        if not there:
            del self._there[tokens[:2]]

    def closest(self, wanted: BlockTokens) -> tuple[bytes, bytes] | None:
        """Return name and tokens of the block with the longest common prefix."""
        there = self._there.get(wanted[:2], [])
        at = bisect_left(there, (wanted.token_ids, b""))
        near = there[max(0, at - 1) : at + 1]
        best = max(near, key=lambda each: shared_tokens(each[0], wanted.token_ids), default=None)
        if best is None or not shared_tokens(best[0], wanted.token_ids):
            return None
        return best[1], best[0]

    def check_integrity(self, names: Set[bytes]) -> None:
        found = [name for there in self._there.values() for _, name in there]
        if len(found) != len(self.tokens) or set(found) != self.tokens.keys() or not self.tokens.keys() <= names:
            raise PoolError("blocks that are found by their tokens differ from those that have names")


class BlockPool:
    """Blocks by number. Event loop only.

    A block without references is free and nameless. A closed segment loses its memory before it is opened again; the
    first one is always open.
    """

    def __init__(self, capacity: int, segment: Segment | None = None) -> None:
        self.capacity = capacity
        self.segment = segment or Segment(max(1, capacity))
        self._closed = list(range(1, -(-capacity // self.segment.blocks)))
        self._leaving: set[int] = set()
        """Closed segments that have their memory still."""
        self._free = {0: list(self._of(0))}
        """By open segment."""
        self.used = 0
        """Blocks with references. Any thread may read it."""
        self._references = [0] * capacity
        self._freed = [0] * capacity
        self._by_name: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._continuations = _Continuations()

    @property
    def free(self) -> int:
        return sum(map(len, self._free.values()))

    @property
    def closed(self) -> int:
        return len(self._closed)

    @property
    def opened(self) -> int:
        return self.used + self.free

    @property
    def open_bytes(self) -> int:
        return self.opened * self.segment.block_bytes

    def open(self) -> None:
        segment = heapq.heappop(self._closed)
        self._free[segment] = list(self._of(segment))

    def close_free(self) -> list[int]:
        going = [segment for segment, free in self._free.items() if segment and len(free) == len(self._of(segment))]
        for segment in going:
            self._leaving.add(segment)
            del self._free[segment]
        return going

    def given_back(self, segments: Iterable[int]) -> None:
        for segment in segments:
            self._leaving.remove(segment)
            heapq.heappush(self._closed, segment)

    def emptied_by(self, tables: Sequence[Sequence[int]]) -> dict[int, int]:
        """Return segments emptied by releasing `tables` in order, and after how many."""
        left = {segment: len(self._of(segment)) - len(free) for segment, free in self._free.items()}
        emptied: dict[int, int] = {}
        for count, freed in enumerate(self.freed_by(tables), 1):
            for segment in map(self.segment_of, freed):
                left[segment] -= 1
                if segment and not left[segment]:
                    emptied[segment] = count
        return emptied

    def bytes_of(self, segment: int) -> int:
        return len(self._of(segment)) * self.segment.block_bytes

    def segment_of(self, block: int) -> int:
        return block // self.segment.blocks

    def _of(self, segment: int) -> range:
        return range(segment * self.segment.blocks, min((segment + 1) * self.segment.blocks, self.capacity))

    def allocate(self, count: int, near: int = 0) -> list[int]:
        """Return blocks with a reference each, from the segment of `near` if possible. Raises PoolError."""
        if not 0 <= count <= self.free:
            raise PoolError(f"{count} blocks are wanted and {self.free} are free")
        segments = sorted(self._free, key=lambda segment: (segment != self.segment_of(near), segment))
        whole = [segment for segment in segments if len(self._free[segment]) >= count]
        taken: list[int] = []
        for segment in whole[:1] or segments:
            free = self._free[segment]
            taken += [heapq.heappop(free) for _ in range(min(len(free), count - len(taken)))]
        for block in taken:
            self._references[block] = 1
        self.used += count
        return taken

    def acquire(self, blocks: Iterable[int]) -> None:
        """Raises PoolError for a free block."""
        for block in blocks:
            if not self._references[block]:
                raise PoolError(f"block {block} is free and cannot be shared")
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Raises PoolError for a free block."""
        for block in blocks:
            if not self._references[block]:
                raise PoolError(f"block {block} is released once too often")
            self._references[block] -= 1
            if not self._references[block]:
                self.used -= 1
                self._freed[block] += 1
                if (name := self._names.pop(block, None)) is not None:
                    del self._by_name[name]
                    self._continuations.remove(name)
                heapq.heappush(self._free[self.segment_of(block)], block)

    def lives(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """Return numbers that change when a block becomes free."""
        return tuple(self._freed[block] for block in blocks)

    def freed_by(self, tables: Iterable[Sequence[int]]) -> Iterator[list[int]]:
        """Yield blocks freed by one table after the other."""
        held: Counter[int] = Counter()
        for table in tables:
            held.update(table)
            yield [block for block in set(table) if held[block] == self._references[block]]

    def find(self, name: bytes) -> int | None:
        """Acquire the block before the next await."""
        return self._by_name.get(name)

    def run(self, names: Iterable[bytes]) -> list[int]:
        found: list[int] = []
        for name in names:
            if (block := self.find(name)) is None:
                break
            found.append(block)
        return found

    def closest(self, wanted: BlockTokens) -> tuple[int, bytes, bytes] | None:
        found = self._continuations.closest(wanted)
        return None if found is None else (self._by_name[found[0]], *found)

    def tokens_of(self, name: bytes) -> bytes:
        found = self._continuations.tokens.get(name)
        return b"" if found is None else found.token_ids

    def publish(self, name: bytes, block: int, tokens: BlockTokens | None = None) -> int:
        """Name an evaluated block; return the block that has the caller's reference now, the known one of that name."""
        known = self._by_name.setdefault(name, block)
        if tokens is not None:
            self._continuations.add(name, tokens)
        if known == block:
            self._names[block] = name
        else:
            self.acquire([known])
            self.release([block])
        return known

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise PoolError unless references are those of `tables`, and all else is free."""
        held = Counter(block for table in tables for block in table)
        free = {block for blocks in self._free.values() for block in blocks}
        closed = {block for segment in (*self._closed, *self._leaving) for block in self._of(segment)}
        if not free.isdisjoint(closed):
            raise PoolError("blocks without memory are in the free list")
        for block, references in enumerate(self._references):
            if references != held[block]:
                raise PoolError(f"block {block} has {references} references instead of {held[block]}")
            if (block in free or block in closed) == bool(references):
                raise PoolError(f"block {block} is {'in the free list and' if references else 'not free but not'} used")
        if len(free) != self.free:
            raise PoolError("a block is in the free list twice")
        if self.used != len(held):
            raise PoolError(f"{self.used} blocks are counted as used, and {len(held)} are")
        if {block: name for name, block in self._by_name.items()} != self._names or not free.isdisjoint(self._names):
            raise PoolError("names and blocks differ")
        self._continuations.check_integrity(self._by_name.keys())
