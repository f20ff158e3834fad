"""Blocks have the users that an obviously right model has, and the check finds faults."""

import threading
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentmem.kv.ledger import ordered
from inference_service.pool.blocks import BlockPool, BlockTokens, PoolError, Segment

CAPACITY = 8
NAMES = [bytes([number]) * 32 for number in range(5)]


class BlockPoolMachine(RuleBasedStateMachine):
    """Holders with lists of blocks, beside a pool that is told the same."""

    @initialize(capacity=st.integers(0, CAPACITY), segment=st.none() | st.integers(1, CAPACITY))
    def begin(self, capacity: int, segment: int | None) -> None:
        self.segment = segment or max(1, capacity)
        self.pool = BlockPool(capacity, segment and Segment(segment, 10))
        self.opened = {0}
        self.leaving: set[int] = set()
        self.tables: list[list[int]] = []
        self.names: dict[bytes, int] = {}
        self.used: set[int] = set()
        self.freed = Counter[int]()

    @property
    def references(self) -> Counter[int]:
        return Counter(block for table in self.tables for block in table)

    @property
    def free(self) -> set[int]:
        opened = {block for block in range(self.pool.capacity) if block // self.segment in self.opened}
        return opened - set(self.references)

    @precondition(lambda self: self.pool.closed)
    @rule()
    def open(self) -> None:
        self.opened.add(min(set(range(self.pool.capacity)) - self.opened - self.leaving))
        self.pool.open()

    @rule()
    def close_free(self) -> None:
        used = {block // self.segment for block in self.references}
        closed = self.opened - used - {0}
        assert set(self.pool.close_free()) == closed
        self.opened -= closed
        self.leaving |= closed

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """Only then may a closed segment be opened again."""
        going = data.draw(st.sets(st.sampled_from(sorted(self.leaving)))) if self.leaving else set()
        self.pool.given_back(going)
        self.leaving -= going

    def held(self, data: st.DataObject, most: int = 1) -> list[int]:
        positions = st.sampled_from(range(len(self.tables)))
        return data.draw(st.lists(positions, min_size=1, max_size=most, unique=True))

    @rule(count=st.integers(0, CAPACITY + 1))
    def allocate(self, count: int) -> None:
        free = self.free
        if count > len(free):
            with pytest.raises(PoolError, match="are wanted"):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert set(blocks) <= free
        assert not set(blocks) & set(self.names.values()), "a block that is given out anew has no name"
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        [position] = self.held(data)
        table = self.tables[position]
        part = data.draw(st.lists(st.sampled_from(table), unique=True)) if table else []
        self.pool.acquire(part)
        self.tables.append(part)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        [position] = self.held(data)
        self.pool.release(self.tables.pop(position))
        self.names = {name: block for name, block in self.names.items() if block not in self.free}

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def publish(self, data: st.DataObject, name: bytes) -> None:
        table = data.draw(st.sampled_from([table for table in self.tables if table]))
        place = data.draw(st.sampled_from(range(len(table))))
        block = table[place]
        if block in self.names.values() and self.names.get(name) != block:
            return  # A block has one name, that of its tokens.
        known = self.names.setdefault(name, block)
        assert self.pool.publish(name, block) == known
        table[place] = known

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def what_is_free_cannot_be_shared_nor_released(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.free)))
        with pytest.raises(PoolError, match="cannot be shared"):
            self.pool.acquire([block])
        with pytest.raises(PoolError, match="once too often"):
            self.pool.release([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def freed_by(self, data: st.DataObject) -> None:
        """`emptied_by` foresees what releasing one table after the other brings."""
        order = data.draw(st.permutations(range(len(self.tables))))
        left = self.references
        before = self.opened - {0} - {block // self.segment for block in left}
        wanted, emptied = list[set[int]](), dict[int, int]()
        for count, position in enumerate(order, 1):
            used = set(left)
            left -= Counter(self.tables[position])
            wanted.append(used - set(left))
            empty = self.opened - {0} - {block // self.segment for block in left}
            emptied |= dict.fromkeys(empty - before - emptied.keys(), count)
        assert self.pool.emptied_by([self.tables[position] for position in order]) == emptied
        assert sum(map(self.pool.bytes_of, self.opened)) == self.pool.open_bytes
        assert [set(freed) for freed in self.pool.freed_by(self.tables[position] for position in order)] == wanted

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity(self.tables)
        assert self.pool.free == len(self.free)
        assert self.pool.used == len(self.references)
        assert self.pool.opened == self.pool.free + self.pool.used
        assert self.pool.open_bytes == self.pool.opened * self.pool.segment.block_bytes
        self.freed.update(self.used - set(self.references))
        self.used = set(self.references)
        blocks = range(self.pool.capacity)
        assert self.pool.lives(blocks) == tuple(self.freed[block] for block in blocks)
        for name in NAMES:
            assert self.pool.find(name) == self.names.get(name)
        if any(self.tables):
            with pytest.raises(PoolError):
                self.pool.check_integrity([])


TestBlockPool = BlockPoolMachine.TestCase


FAULTS = {
    "lost reference": "pool._references[blocks[0]] -= 1",
    "surplus reference": "pool._references[blocks[1]] += 1",
    "forgotten release": "pool.allocate(1)",
    "forgotten acquire": "pool.release([blocks[2]])",
    "block twice in the free list": "free.append(free[0])",
    "block in use in the free list": "free.append(blocks[0])",
    "block lost from the free list": "free.pop()",
    "name of a free block": "pool._by_name[NAMES[1]] = free[0]; pool._names[free[0]] = NAMES[1]",
    "name that leads elsewhere": "pool._by_name[NAMES[0]] = blocks[1]",
    "name without a block": "del pool._by_name[NAMES[0]]",
    "block without its name": "del pool._names[blocks[0]]",
    "blocks counted wrong": "pool.used -= 1",
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(3)
    pool.publish(NAMES[0], blocks[0])
    pool.acquire(blocks[:1])
    pool.check_integrity([blocks, blocks[:1]])
    exec(fault, {"pool": pool, "blocks": blocks, "free": pool._free[0], "NAMES": NAMES})
    with pytest.raises(PoolError):
        pool.check_integrity([blocks, blocks[:1]])


def test_blocks_of_a_sequence_are_in_one_segment_where_one_has_so_many() -> None:
    pool = BlockPool(12, Segment(4))
    for _ in range(2):
        pool.open()
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2) == [4, 5]
    assert pool.allocate(1) == [3]
    assert pool.allocate(1, near=5) == [6]
    assert pool.allocate(3, near=5) == [8, 9, 10], "the segment of 5 has one"
    assert sorted(pool.allocate(2, near=5)) == [7, 11]


def test_the_count_of_used_blocks_may_be_read_while_segments_come_and_go() -> None:
    """As metrics do, on a thread of their own; iterating over the segments there raised RuntimeError."""
    pool, done = BlockPool(160, Segment(10)), threading.Event()
    found: set[int | str] = set()

    def scrape() -> None:
        while not done.is_set():
            try:
                found.add(pool.used)
            except RuntimeError as error:
                found.add(str(error))

    thread = threading.Thread(target=scrape)
    thread.start()
    for _ in range(3000):
        for _ in range(pool.closed):
            pool.open()
        pool.given_back(pool.close_free())
    done.set()
    thread.join()
    assert found == {0}


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two begin with in common, one by one."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


_TOKENS = st.lists(st.sampled_from([0, 1, 255, 256, 1 << 24, (1 << 32) - 1]), min_size=1, max_size=4)
_PLACES = st.tuples(st.sampled_from(["n", "m"]), st.sampled_from([b"", NAMES[0]]))


@given(held=st.lists(st.tuples(_PLACES, _TOKENS, st.booleans()), max_size=12), place=_PLACES, wanted=_TOKENS)
def test_the_closest_block_shares_as_much_as_any_that_is_there(
    held: list[tuple[tuple[str, bytes], list[int], bool]], place: tuple[str, bytes], wanted: list[int]
) -> None:
    """It has the namespace and the parent; released blocks are not found."""
    pool, tables, there = BlockPool(12), [], {}
    for (namespace, parent), tokens, stays in held:
        name = repr((namespace, parent, tokens)).encode()
        [block] = pool.allocate(1)
        tables.append([pool.publish(name, block, BlockTokens(namespace, parent, ordered(tokens)))])
        if stays:
            there[name] = (namespace, parent), tokens
    for name in [name for name in pool._by_name if name not in there]:
        block = pool.find(name)
        while [block] in tables:
            tables.remove([block])
            pool.release([block])
    pool.check_integrity(tables)
    most = max((shared(tokens, wanted) for at, tokens in there.values() if at == place), default=0)
    found = pool.closest(BlockTokens(*place, ordered(wanted)))
    assert (found is None) == (most == 0)
    if found is not None:
        block, name, token_ids = found
        at, tokens = there[name]
        assert (pool.find(name), at, token_ids) == (block, place, ordered(tokens))
        assert shared(tokens, wanted) == most
        assert pool.tokens_of(name) == token_ids


def test_a_block_that_is_gone_and_still_found_by_its_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.publish(NAMES[0], block, BlockTokens("n", b"", ordered([1, 2])))
    pool.check_integrity([[block]])
    monkeypatch.setattr(pool._continuations, "remove", lambda name: None)
    pool.release([block])
    with pytest.raises(PoolError, match="found by their tokens"):
        pool.check_integrity([])
