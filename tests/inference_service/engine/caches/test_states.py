"""Caches of recurrent layers: what they share, what they copy, and what they forget."""

import mlx.core as mx
import pytest

from inference_service.engine.caches.states import StateCache


def state(seed: int, offset: int) -> StateCache:
    return StateCache([mx.random.normal((1, 3, 8), key=mx.random.key(seed)), mx.full((1, 2), seed)], offset)


def test_rows_join_leave_and_come_out_as_they_were() -> None:
    caches = [state(seed, 10 * seed) for seed in (1, 2, 3)]
    batch = StateCache.merge(caches[:2])
    batch.extend(StateCache.merge(caches[2:]))
    batch.filter([2, 0])
    batch.count(4)
    assert batch.offset.tolist() == [34, 14]
    for row, seed in ((0, 3), (1, 1)):
        found, wanted = batch.extract(row), caches[seed - 1]
        assert found.offset == wanted.offset + 4
        assert all(mx.array_equal(a, b) for a, b in zip(found.arrays, wanted.arrays, strict=True))


def test_empty_states_and_others_are_no_batch() -> None:
    with pytest.raises(ValueError, match="empty state"):
        StateCache.merge([state(1, 5), StateCache([None, None])])


def test_what_assigns_to_elements_does_not_change_what_was_shared() -> None:
    cache = state(1, 5)
    shared = cache.shared()
    before = [array.tolist() for array in shared]
    cache.arrays[0][0, 0] = 7.0
    shared[1][0] = 9.0
    mx.eval(cache.arrays, shared)
    assert shared[0].tolist() == before[0]
    assert cache.arrays[1].tolist() == before[1]


def test_views_of_a_chunk_do_not_keep_the_chunk() -> None:
    chunk = mx.zeros((1, 4096, 256))
    mx.eval(chunk)
    cache = StateCache([None])
    cache.cache = [chunk[:, -3:]]
    cache.count(4096)
    [kept] = cache.shared()
    mx.eval(kept, cache.arrays)
    held = mx.get_active_memory()
    del chunk
    assert mx.get_active_memory() <= held - 4096 * 256 * 4


def test_forgotten_is_empty_at_its_length() -> None:
    cache = state(1, 50)
    assert (cache.can_trim(0), cache.can_trim(1)) == (True, False)
    cache.forget(40)
    assert (cache.offset, cache.empty(), cache.arrays) == (40, True, [])
