"""The memory of blocks, the host's and a device's own: bit for bit what was put there, and private copies."""

import gc

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged import arena as arena_module
from inference_service.engine.paged.arena import Arena, HostArena
from inference_service.engine.paged.layout import BlockLayout
from tests.inference_service.engine.paged.bits import (
    CASES,
    Bits,
    Case,
    block_layout,
    cut,
    data_of,
    every_case,
    geometry,
    random_bits,
)

BLOCKS, SEGMENT = 9, 4
"""Blocks, and those of a segment: a few of them, of which the last is smaller."""


def made_of(kind: type[Arena], made: Geometry, blocks: int = BLOCKS, segment: int | None = SEGMENT) -> Arena:
    return kind(block_layout(made), blocks, segment)


def block_bits(made: Geometry, tokens: int = BLOCK_TOKENS, seed: int = 0) -> Bits:
    return random_bits(made.block_shapes(tokens), seed)


def filled(arena: Arena, made: Geometry) -> list[Bits]:
    """All blocks hold bits of their own: these."""
    arena.take(range(BLOCKS))
    every = [block_bits(made, seed=100 + block) for block in range(BLOCKS)]
    arena.put([(block, 0, bits) for block, bits in enumerate(every)])
    return every


def changed(arena: Arena, every: list[Bits]) -> list[int]:
    return [block for block in range(BLOCKS) if arena.read(block, BLOCK_TOKENS)() != data_of(every[block])]


def test_the_memory_is_taken_by_segments_and_given_back(kind: type[Arena]) -> None:
    gc.collect()  # What others have left would go at any moment.
    mx.clear_cache()
    before = mx.get_active_memory()
    made = geometry()
    block_bytes = block_layout(made).nbytes

    def taken() -> int:
        assert 0 <= mx.get_active_memory() - before - arena.nbytes < block_bytes
        return arena.nbytes // block_bytes

    arena = made_of(kind, made)
    assert taken() == SEGMENT
    kept, other = block_bits(made), block_bits(made, seed=1)
    assert (arena.has([0, 3]), arena.has([3, 8])) == (True, False)
    arena.take([8, 3])
    arena.put([(8, 0, kept), (3, 0, kept)])
    assert taken() == SEGMENT + 1, "the last is what is left"
    arena.take([4, 6])
    arena.put([(4, 0, other), (6, 0, other)])
    assert taken() == BLOCKS
    assert arena.has(range(BLOCKS))
    arena.release([1])
    mx.clear_cache()
    assert taken() == SEGMENT + 1
    assert arena.read(8, BLOCK_TOKENS)() == arena.read(3, BLOCK_TOKENS)() == data_of(kept)
    arena.take([6])
    arena.put([(6, 0, other)])
    assert taken() == BLOCKS, "what is written is taken again"
    assert arena.read(6, BLOCK_TOKENS)() == data_of(other)
    assert made_of(kind, made, segment=None).nbytes == BLOCKS * block_bytes


def test_what_was_given_back_is_not_read_as_zeros(kind: type[Arena]) -> None:
    """They would be taken for KV, and be written to disk under the name of what was there."""
    made = geometry()
    arena = made_of(kind, made)
    every = filled(arena, made)
    arena.release([1])
    nbytes = arena.nbytes
    for work in (
        lambda: arena.read(5, 256)(),
        lambda: arena.read_run([3, 5], 0, 300)(),
        lambda: arena.put([(5, 0, every[5])]),
        lambda: arena.put([(5, 3, block_bits(made, 2))]),
        lambda: arena.copy(5, 0),
        lambda: arena.copy(0, 5),
    ):
        with pytest.raises(LookupError, match="segment 1 of the pool has no memory"):
            work()
    assert arena.nbytes == nbytes, "no call but `take` takes memory"
    arena.close()
    with pytest.raises(LookupError):
        arena.read(8, 44)()
    assert not arena.nbytes


def test_a_segment_for_which_the_device_has_no_memory_is_not_taken(
    kind: type[Arena], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the allocation would end the process."""
    made = geometry()
    arena, bits = made_of(kind, made), block_bits(made)
    monkeypatch.setattr(arena_module, "free_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match=r"takes .*, and 1\.0 kB are free"):
        arena.take([1, 5])
    with pytest.raises(MemoryError):
        made_of(kind, made)
    arena.take([1, 2])
    arena.put([(1, 0, bits)])
    monkeypatch.setattr(arena_module, "free_bytes", lambda: 1 << 40)
    arena.take([1, 5])
    arena.copy(1, 5)
    assert arena.read(5, BLOCK_TOKENS)() == data_of(bits)


@every_case
@pytest.mark.parametrize("tokens", [1, 100, 255, BLOCK_TOKENS])
def test_what_is_read_is_what_was_put(kind: type[Arena], case: Case, tokens: int) -> None:
    made = geometry(case)
    arena, wanted = made_of(kind, made), block_bits(made, tokens)
    arena.take([7])
    arena.put([(7, 0, wanted), (2, 0, block_bits(made, seed=5))])
    assert arena.read(7, tokens)() == data_of(wanted)


@every_case
def test_tokens_from_one_on_are_put_behind_those_that_are_there(kind: type[Arena], case: Case) -> None:
    made = geometry(case)
    arena = made_of(kind, made)
    every = filled(arena, made)
    parts = [(5, 3, block_bits(made, 2, 1)), (8, 200, block_bits(made, 56, 2)), (0, 255, block_bits(made, 1, 3))]
    arena.put(parts)
    assert changed(arena, every) == [0, 5, 8]
    for block, first, new in parts:
        n = next(iter(new.values())).shape[2]
        old = every[block]
        wanted = {k: np.concatenate([old[k][:, :, :first], new[k], old[k][:, :, first + n :]], axis=2) for k in old}
        assert arena.read(block, BLOCK_TOKENS)() == data_of(wanted)


def test_a_copy_is_the_whole_block(kind: type[Arena]) -> None:
    made = geometry(CASES[2])
    arena = made_of(kind, made)
    every = filled(arena, made)
    arena.copy(5, 1)
    assert changed(arena, every) == [1]
    assert arena.read(1, BLOCK_TOKENS)() == data_of(every[5])
    arena.put([(5, 0, block_bits(made))])
    assert arena.read(1, BLOCK_TOKENS)() == data_of(every[5]), "it is no view"


def test_what_was_read_stays_when_the_block_is_overwritten(kind: type[Arena]) -> None:
    made = geometry()
    arena = made_of(kind, made)
    every = filled(arena, made)
    data, run = arena.read(3, 100)(), arena.read_run([3, 5], 200, 300)()
    arena.put([(3, 0, block_bits(made)), (5, 0, block_bits(made))])
    assert data == data_of(cut(every[3], 0, 100))
    whole = {name: np.concatenate([every[3][name], every[5][name]], axis=2) for name in every[3]}
    assert run == data_of(cut(whole, 200, 300))


@every_case
@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 256), (300, 301), (256, 700), (301, 512), (1000, 1280)])
def test_a_run_is_its_tokens_wherever_it_begins_and_ends(kind: type[Arena], case: Case, start: int, end: int) -> None:
    made = geometry(case)
    arena = made_of(kind, made)
    every = filled(arena, made)
    order = [6, 0, 8, 2, 5]
    whole = {name: np.concatenate([every[block][name] for block in order], axis=2) for name in every[0]}
    blocks = order[start // BLOCK_TOKENS : -(-end // BLOCK_TOKENS)]
    assert arena.read_run(blocks, start, end)() == data_of(cut(whole, start, end))


def test_views_keep_the_memory_alive() -> None:
    """A reader that nobody waits for any more writes to memory that is nobody else's."""
    gc.collect()
    held_before = mx.get_active_memory()
    arena = made_of(HostArena, geometry())
    assert isinstance(arena, HostArena)
    views = list(arena.layout.views(arena.words(2)).values())
    arena.close()
    mx.clear_cache()
    others = [mx.zeros(arena.layout.words) for _ in range(20)]
    mx.eval(others)
    for view in views:
        view[...] = 7
    assert not any(mx.any(other).item() for other in others)
    del views, view, others
    gc.collect()
    assert mx.get_active_memory() <= held_before


def test_an_arena_of_a_model_without_full_attention_takes_nothing(kind: type[Arena]) -> None:
    arena = kind(BlockLayout({}), BLOCKS)
    arena.take(range(BLOCKS))
    assert (arena.nbytes, arena.read(3, 10)()) == (0, {})
