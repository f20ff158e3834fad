"""Bookkeeping of an arena's blocks: free list, reference counts, and names. Pure.

A block's name is its chain hash, so that sequences with the same tokens up to its end find and share it. A shared block
is never written again: a sequence that continues it writes to a block of its own (copy on write).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence


class PoolError(Exception):
    """The bookkeeping does not add up. Everything in the pool can be computed again: empty it and go on."""


class BlockPool:
    """The blocks of one arena, by number. Event loop only.

    A block is free, or has references. `allocate` and `acquire` give references, `release` takes them back; a block
    without references is free, and nameless.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._references = [0] * capacity
        self._by_name: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Return free blocks, with one reference each. Raises PoolError if there are not so many."""
        if count > len(self._free):
            raise PoolError(f"{count} blocks are wanted and {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each; all are in use."""
        for block in blocks:
            if not self._references[block]:
                raise PoolError(f"block {block} is free and cannot be shared")
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove a reference from each."""
        for block in blocks:
            if not self._references[block]:
                raise PoolError(f"block {block} is released once too often")
            self._references[block] -= 1
            if not self._references[block]:
                if (name := self._names.pop(block, None)) is not None:
                    del self._by_name[name]
                self._free.append(block)

    def freed_by(self, tables: Iterable[Sequence[int]]) -> Iterator[int]:
        """Yield how many blocks more would be free if the first of `tables` were released, the first two, and so on."""
        held: Counter[int] = Counter()
        freed = 0
        for table in tables:
            for block in table:
                held[block] += 1
                freed += held[block] == self._references[block]
            yield freed

    def freed(self, tables: Iterable[Sequence[int]]) -> set[int]:
        """Return the blocks that would be free if all of `tables` were released."""
        held = Counter(block for table in tables for block in table)
        return {block for block, count in held.items() if count == self._references[block]}

    def find(self, name: bytes) -> int | None:
        """Return the block of that name, if there is one. Acquire it before the next await."""
        return self._by_name.get(name)

    def run(self, names: Iterable[bytes]) -> list[int]:
        """Return the blocks of the first of these names, up to one that is not here. Acquire them likewise."""
        found: list[int] = []
        for name in names:
            if (block := self.find(name)) is None:
                break
            found.append(block)
        return found

    def publish(self, name: bytes, block: int) -> int:
        """Name a block that is written and evaluated. Where the name is taken, the reference moves to that block.

        Returns the block that the caller's reference is on now.
        """
        known = self._by_name.setdefault(name, block)
        if known == block:
            self._names[block] = name
        else:
            self.acquire([known])
            self.release([block])
        return known

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise PoolError unless the references are exactly those of `tables`, and all else is free and nameless."""
        held = Counter(block for table in tables for block in table)
        free = set(self._free)
        for block, references in enumerate(self._references):
            if references != held[block]:
                raise PoolError(f"block {block} has {references} references instead of {held[block]}")
            if (block in free) == bool(references):
                raise PoolError(f"block {block} is {'in the free list and' if references else 'not free but not'} used")
        if len(free) != len(self._free):
            raise PoolError("a block is in the free list twice")
        if {block: name for name, block in self._by_name.items()} != self._names or not free.isdisjoint(self._names):
            raise PoolError("names and blocks differ")
