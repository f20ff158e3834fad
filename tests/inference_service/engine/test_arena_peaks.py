"""The pool's memory is there once: no call copies an arena. In one far larger than the sequence, a copy shows."""

from collections.abc import Callable

import mlx.core as mx
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS, TENSORS
from inference_service.engine.arenas import Arena
from inference_service.engine.caches import KVBuffers
from tests.inference_service.engine.arena_bits import buffers_of, full_arena, geometry, random_tensors

MANY = 200


@pytest.fixture
def large() -> tuple[Arena, list[KVBuffers], int]:
    """An arena, a sequence of it, and how much writing that may take: less than the smallest of the arena's tensors."""
    made = geometry()
    arena = full_arena(made, MANY, None)
    buffers = buffers_of(made, random_tensors(made, made.full, 300))
    arena.write(buffers, 0, [3, 150])
    bound = 2 * sum(layer.nbytes for layer in buffers)
    assert bound < min(array.nbytes for array in arena._segments[0].values())
    return arena, buffers, bound


def peak(work: Callable[[], object]) -> int:
    """Bytes that `work` needed at most beyond what there was before."""
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    work()
    return mx.get_peak_memory() - before


def write_gather_read_write(arena: Arena, buffers: list[KVBuffers]) -> tuple[int, object]:
    """A write after all else was done; its peak, and everything that the calls gave."""
    kept = [
        arena.gather([3, 150], 300),
        arena.gather([3], BLOCK_TOKENS),
        arena.read([3], BLOCK_TOKENS),
        arena.read([3, 150], 300),
        arena.read([150], 44),
    ]
    return peak(lambda: arena.write(buffers, 0, [150, 3])), kept


def test_a_write_after_a_gather_and_a_read_copies_no_arena(large: tuple[Arena, list[KVBuffers], int]) -> None:
    arena, buffers, bound = large
    needed, _ = write_gather_read_write(arena, buffers)
    assert needed <= bound


def test_no_call_takes_more_than_a_few_times_what_it_gives(large: tuple[Arena, list[KVBuffers], int]) -> None:
    arena, buffers, bound = large
    given = sum(layer.nbytes for layer in arena.gather([3, 150], 300))
    assert peak(lambda: arena.gather([3, 150], 300)) <= 3 * given
    assert peak(lambda: arena.read([3, 150], 300)) <= 3 * given
    assert peak(lambda: arena.write(buffers, 1, [7])) <= bound


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[3],
        lambda array: array[mx.array([3, 150]), 0],
        lambda array: array[:, :, :, :100],
    ],
    ids=["slice", "gather", "cut"],
)
def test_a_view_that_outlives_its_call_is_noticed(
    large: tuple[Arena, list[KVBuffers], int], view: Callable[[mx.array], mx.array], tensor: str
) -> None:
    """The same measurement with the fault that it is there for, on one tensor only."""
    arena, buffers, bound = large
    outlives = view(arena._segments[0][tensor])
    needed, _ = write_gather_read_write(arena, buffers)
    assert needed > bound
    assert outlives.size
