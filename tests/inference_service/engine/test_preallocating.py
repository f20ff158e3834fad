"""Buffers allocated before they are read into: bit for bit what was written, zeros behind, and nobody else's."""

import gc

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS, TENSORS
from inference_service.engine import preallocating
from inference_service.engine.arenas import Arenas
from inference_service.engine.caches import KVBuffers, QuantizedKVCache
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.preallocating import PreallocatedBuffers
from inference_service.engine.quantization import FOUR_BITS
from tests.inference_service.engine.arena_bits import (
    BLOCKS,
    as_file,
    bits,
    buffers_of,
    cut,
    geometry,
    held,
    random_tensors,
    same,
    shapes,
)
from tests.inference_service.engine.test_arena_peaks import peak


def write(into: PreallocatedBuffers, tensors: dict[str, np.ndarray], start: int, made: Geometry) -> None:
    """Write tokens as a file has them."""
    for name, views in into.between(start, start + tensors["k.weights"].shape[2]).items():
        for view, layer in zip(views, as_file(tensors, made)[name], strict=True):
            assert view.dtype == layer.dtype
            np.copyto(view, layer)


def of_full_attention(dtype: mx.Dtype = mx.bfloat16, heads: int = 2) -> Geometry:
    return Geometry(4, dtype, FOUR_BITS, LayerGroup((0, 1, 2), heads, 64, 128))


def full(caches: list[object]) -> list[KVBuffers]:
    return [cache.buffers for cache in caches if isinstance(cache, QuantizedKVCache)]


@shapes
@pytest.mark.parametrize("hot", [0, 1, 2])
@pytest.mark.parametrize(("tokens", "room", "capacity"), [(600, 0, 768), (600, 1000, 1024), (768, 0, 1024)])
def test_caches_are_what_was_written_behind_the_pools_blocks(
    dtype: mx.Dtype, heads: int, hot: int, tokens: int, room: int, capacity: int
) -> None:
    made = of_full_attention(dtype, heads)
    arenas, wanted = Arenas(made, BLOCKS, 0, segments=(2, None)), random_tensors(made, made.full, tokens)
    start = hot * BLOCK_TOKENS
    caches = made.new_caches()
    for cache, buffers in zip(caches, buffers_of(made, wanted), strict=True):
        assert isinstance(cache, QuantizedKVCache)
        cache.buffers = buffers
    arenas.write(caches, 0, [5, 1, 2], [])
    into = arenas.preallocate(tokens, room)
    assert into.capacity == capacity
    write(into, {name: array[:, :, start:] for name, array in wanted.items()}, start, made)
    into.clear(tokens)
    found = full(arenas.caches(tokens, [5, 1, 2][:hot], [], None, room, into))
    assert same(held(found), wanted)
    for layer in found:
        for array in layer.arrays:
            assert array.shape[2] == capacity
            assert not bits(array)[:, :, tokens:].any()


def test_what_was_written_and_is_not_wanted_is_cleared() -> None:
    made = geometry()
    whole = random_tensors(made, made.full, 512)
    into = PreallocatedBuffers(made.shapes(made.full, 512), 512)
    write(into, whole, 0, made)
    into.clear(300)
    into.clear(400)
    into.clear(100)
    layers = into.take(TENSORS)
    for row, parts in enumerate(layers):
        for name, array in parts.items():
            assert np.array_equal(bits(array)[0, :, :100], whole[name][row][:, :100])
            assert not bits(array)[0, :, 100:].any()


@pytest.mark.parametrize("large", [1, 1 << 14, 1 << 30])
def test_however_memory_is_allocated(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    """By loading, by writing zeros, and some of each."""
    monkeypatch.setattr(preallocating, "_LARGE", large)
    for dtype in (mx.float32, mx.bfloat16, mx.float16):
        made = geometry(dtype)
        whole = random_tensors(made, made.full, 256)
        into = PreallocatedBuffers(made.shapes(made.full, 256), 256)
        write(into, whole, 0, made)
        for row, parts in enumerate(into.take(TENSORS)):
            for name, array in parts.items():
                assert array.dtype == (mx.uint32 if name.endswith("weights") else dtype)
                assert np.array_equal(bits(array)[0], whole[name][row])


def test_tokens_beyond_the_end_are_refused() -> None:
    made = geometry()
    with pytest.raises(ValueError, match="tokens to 257 for 256"):
        PreallocatedBuffers(made.shapes(made.full, 256), 256).between(0, 257)


def test_views_keep_the_memory_alive() -> None:
    """A reader that nobody waits for any more writes to memory that is nobody else's."""
    made = geometry()
    held_before = mx.get_active_memory()
    into = PreallocatedBuffers(made.shapes(made.full, 256), 256)
    views = into.between(0, 256)
    del into
    gc.collect()
    others = [mx.zeros(1 << 16) for _ in range(50)]
    mx.eval(others)
    for each in views.values():
        for view in each:
            view[...] = 7
    assert not any(mx.any(other).item() for other in others)
    del views, view, each, others
    gc.collect()
    assert mx.get_active_memory() <= held_before


def test_what_comes_next_is_written_in_place() -> None:
    """Nothing else holds the arrays: a token more copies no buffer."""
    made = geometry()
    into = PreallocatedBuffers(made.shapes(made.full, 4096), 4096)
    into.clear(0)
    layers = into.take(TENSORS)
    nbytes = sum(array.nbytes for parts in layers for array in parts.values())
    del into

    def append() -> None:
        for parts in layers:
            for array in parts.values():
                array[:, :, 100:101] = 1
                mx.eval(array)

    assert peak(append) < nbytes / 100
    assert all(bits(array)[:, :, 100].any() for parts in layers for array in parts.values())


def test_blocks_of_the_pool_are_copied_and_files_are_not() -> None:
    made = of_full_attention()
    arenas, wanted = Arenas(made, BLOCKS, 0), random_tensors(made, made.full, 8 * BLOCK_TOKENS)
    into = arenas.preallocate(8 * BLOCK_TOKENS - 1)
    write(into, wanted, 0, made)
    nbytes = sum(view.nbytes for views in into.between(0, into.capacity).values() for view in views)
    assert peak(lambda: arenas.caches(8 * BLOCK_TOKENS - 1, [0], [], None, 0, into)) < nbytes / 2


def test_a_part_is_cut() -> None:
    made = geometry()
    whole = random_tensors(made, made.full, 256)
    into = PreallocatedBuffers(made.shapes(made.full, 256), 256)
    write(into, cut(whole, 200, 50), 50, made)
    for name, array in into.take(["k.weights"])[1].items():
        assert np.array_equal(bits(array)[0, :, 50:200], whole[name][1][:, 50:200])
