"""Tables of blocks and windows: sharing by name, and what goes away with the last reference."""

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference_service.pool.blocks import PoolError
from inference_service.pool.kv import KVPool, Space, Table

PIECES = 3


def names(*tokens: int) -> list[bytes]:
    """Names like chain hashes: each of all tokens so far."""
    return [bytes([len(tokens), *tokens[: end + 1]]) for end in range(len(tokens))]


def written(pool: KVPool, blocks: int, pieces: int = 0, window_tokens: int = 0) -> Table:
    return Table(256 * blocks, tuple(pool.full.allocate(blocks)), window_tokens, tuple(pool.pieces.allocate(pieces)))


def pool_of(blocks: int = 8, pieces: int = 8) -> KVPool:
    return KVPool(Space(blocks, pieces), PIECES)


def has(pool: KVPool, space: Space) -> bool:
    return space.blocks <= pool.full.free and space.pieces <= pool.pieces.free


def test_entries_of_windows_that_are_gone_do_not_pile_up() -> None:
    pool = pool_of(pieces=2)
    for number in range(50):
        pool.release(pool.publish(names(number), written(pool, 1, 2, 300)))
    assert len(pool._checkpoints) == 1


@pytest.mark.parametrize(
    "give_back",
    [
        lambda pool, table: pool.release(table),
        lambda pool, table: pool.release(Table(0, table.blocks)),
        lambda pool, table: pool.release(Table(0, (), 0, table.pieces)),
    ],
)
def test_on_release_is_told_whenever_references_come_back(give_back: Callable[[KVPool, Table], None]) -> None:
    pool, told = pool_of(), []
    table = pool.publish(names(1, 2), written(pool, 2, 2, 300))
    pool.on_release = lambda: told.append((pool.full.free, pool.pieces.free))
    pool.acquire(table)
    assert not told
    give_back(pool, table)
    assert told == [(6, 6)], "when the references are back, not before"


def test_the_check_is_of_both_pools() -> None:
    pool = pool_of()
    table = written(pool, 1, 1, 300)
    for wrong in (Table(0, table.blocks), Table(0, (), 0, table.pieces)):
        with pytest.raises(PoolError):
            pool.check_integrity([wrong])
    pool.check_integrity([table])


class KVPoolMachine(RuleBasedStateMachine):
    """Sequences that come and go. What a block or a checkpoint holds is known from the names of all that were written:
    of each piece it is the number of its writing."""

    @initialize()
    def begin(self) -> None:
        self.pool = KVPool(Space(12, 9), PIECES)
        self.tables: list[tuple[list[bytes], Table]] = []
        self.blocks: dict[int, bytes] = {}
        self.writings: dict[int, int] = {}
        self.numbers = count()
        self.checkpoints: dict[bytes, list[tuple[tuple[int, ...], int]]] = {}
        self.pins: list[Table] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3), pieces=st.integers(0, PIECES), extra=st.data())
    def publish(self, tokens: list[int], pieces: int, extra: st.DataObject) -> None:
        """A sequence whose checkpoint begins with pieces of another's."""
        chain = names(*tokens)
        chain = [bytes([len(name) - 1]) + name[1:] for name in chain]
        others = [each for _, table in self.tables for each in table.pieces]
        shared = extra.draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if others and pieces else []
        if not has(self.pool, Space(len(tokens), pieces)):
            return
        window = extra.draw(st.integers(1, 99)) if pieces else 0
        new = written(self.pool, len(tokens), pieces, window)
        self.pool.pieces.acquire(shared)
        table = Table(new.tokens, new.blocks, window, (*shared, *new.pieces))
        for name, block in zip(chain, table.blocks, strict=True):
            self.blocks[block] = name
        for piece in new.pieces:
            self.writings[piece] = next(self.numbers)
        if pieces:
            self.checkpoints.setdefault(chain[-1], []).append(self.held(table))
        self.tables.append((chain, self.pool.publish(chain, table)))

    def held(self, table: Table) -> tuple[tuple[int, ...], int]:
        return tuple(self.writings[piece] for piece in table.pieces), table.window_tokens

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        _, table = self.tables.pop(data.draw(st.sampled_from(range(len(self.tables)))))
        self.pool.release(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        chain, _ = data.draw(st.sampled_from(self.tables))
        if (table := self.pool.find_checkpoint(chain[-1])) is not None:
            self.pins.append(Table(0, (), table.window_tokens, table.pieces))
            self.pool.acquire(self.pins[-1])

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        self.pool.release(self.pins.pop(0))

    @invariant()
    def what_is_found_is_what_the_name_says(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity([*(table for _, table in self.tables), *self.pins])
        for chain, table in self.tables:
            assert [self.blocks[block] for block in table.blocks] == chain
            assert [self.pool.full.find(name) for name in chain] == list(table.blocks)
            if table.pieces:
                assert self.held(table) in self.checkpoints[chain[-1]]
                assert self.pool.find_checkpoint(chain[-1]) is not None
        for name, said in self.checkpoints.items():
            if (found := self.pool.find_checkpoint(name)) is not None:
                assert self.held(found) in said


TestKVPool = KVPoolMachine.TestCase


def checkpoint(name: bytes, pool: KVPool, *pieces: int) -> Table:
    """A checkpoint of these pieces, with references of its own on them."""
    pool.pieces.acquire(pieces)
    return pool.publish_checkpoint(name, Table(300, (), 44, pieces))


def test_a_name_that_is_known_gets_the_references_whatever_pieces_both_have() -> None:
    pool, told = pool_of(), []
    first, second, third = pool.pieces.allocate(3)
    known = checkpoint(b"one", pool, first, second)
    pool.release(Table(0, (), 0, (first, second)))
    pool.on_release = lambda: told.append(pool.pieces.used)
    assert checkpoint(b"one", pool, second, third) == known, "the one that was first, and not its own"
    assert checkpoint(b"one", pool, first, second) == known
    assert told == [3, 3]
    pool.check_integrity([known, known, known, Table(0, (), 0, (third,))])
    for _ in range(2):
        pool.release(known)
        assert pool.find_checkpoint(b"one") == known
    pool.release(known)
    assert pool.find_checkpoint(b"one") is None
    pool.check_integrity([Table(0, (), 0, (third,))])
