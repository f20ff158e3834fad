"""The pool's memory: bit for bit what was written, and private copies."""

import gc
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, TENSORS, BlockHeader
from inference_service.engine import arenas as arenas_module
from inference_service.engine.arenas import Arena, Arenas
from inference_service.engine.caches import QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.checkpoints import window_tensors
from inference_service.engine.geometry import Caches, Geometry, LayerGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.engine.uploading import host_bytes
from inference_service.storage.blocks import read_block, write_block
from tests.inference_service.engine.arena_bits import (
    BLOCKS,
    PIECES,
    SEGMENT,
    as_arrays,
    as_file,
    blocks_for,
    buffers_of,
    cut,
    full_arena,
    geometry,
    held,
    random_tensors,
    same,
    shapes,
)


@shapes
def test_the_memory_is_taken_by_segments_and_given_back(dtype: mx.Dtype, heads: int) -> None:
    gc.collect()  # What others have left would go at any moment.
    mx.clear_cache()
    before = mx.get_active_memory()
    made = geometry(dtype, heads)
    block_bytes = BLOCK_TOKENS * made.bytes_per_token

    def taken() -> int:
        """Blocks that there is memory for."""
        assert 0 <= mx.get_active_memory() - before - arena.nbytes < block_bytes
        return arena.nbytes // block_bytes

    arena = full_arena(made)
    assert taken() == SEGMENT
    kept, other = random_tensors(made, made.full, 300), random_tensors(made, made.full, 300, seed=1)
    arena.write(buffers_of(made, kept), 0, [8, 3])
    assert taken() == SEGMENT + 1, "the last is what is left"
    arena.write(buffers_of(made, other), 0, [4, 6])
    assert taken() == BLOCKS
    arena.release([1])
    mx.clear_cache()
    assert taken() == SEGMENT + 1
    assert same(held(arena.gather([8, 3], 300)), kept)
    arena.write(buffers_of(made, other), 0, [6, 3])
    assert taken() == BLOCKS, "what is written is taken again"
    assert same(held(arena.gather([6, 3], 300)), other)
    assert full_arena(made, BLOCKS, None).nbytes == BLOCKS * block_bytes


def test_what_was_given_back_is_not_read_as_zeros() -> None:
    """They would be taken for KV, and be written to disk under the name of what was there."""
    made = geometry(mx.float32, 2)
    arena = full_arena(made)
    arena.write(buffers_of(made, random_tensors(made, made.full, 300)), 0, [5, 8])
    arena.release([1])
    nbytes = arena.nbytes
    for read in (lambda: arena.gather([5, 8], 300), lambda: arena.read([5], 256)):
        with pytest.raises(LookupError, match="segment 1 of the pool has no memory"):
            read()
    assert arena.nbytes == nbytes, "reading takes no memory"
    arena.close()
    with pytest.raises(LookupError):
        arena.read([8], 44)
    assert not arena.nbytes


def test_a_segment_for_which_the_device_has_no_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the allocation would end the process."""
    made = geometry(mx.float32, 2)
    arena, tensors = full_arena(made), random_tensors(made, made.full, 300)
    monkeypatch.setattr(arenas_module, "free_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match=r"takes .*, and 1\.0 kB are free"):
        arena.write(buffers_of(made, tensors), 0, [1, 5])
    with pytest.raises(MemoryError):
        full_arena(made)
    arena.write(buffers_of(made, tensors), 0, [1, 2])
    monkeypatch.undo()
    arena.write(buffers_of(made, tensors), 0, [1, 5])
    assert same(held(arena.gather([1, 5], 300)), tensors)


@shapes
@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 512, 700])
def test_gathered_is_what_was_written(dtype: mx.Dtype, heads: int, tokens: int) -> None:
    made = geometry(dtype, heads)
    arena, wanted = full_arena(made), random_tensors(made, made.full, tokens)
    arena.write(buffers_of(made, wanted), 0, blocks_for(tokens))
    found = arena.gather(blocks_for(tokens), tokens)
    assert [layer.filled for layer in found] == [tokens] * 3
    assert same(held(found), wanted)


@shapes
@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 511, 512])
def test_gathered_leaves_room_for_one_token_more(dtype: mx.Dtype, heads: int, tokens: int) -> None:
    made = geometry(dtype, heads)
    arena, wanted = full_arena(made), random_tensors(made, made.full, tokens)
    arena.write(buffers_of(made, wanted), 0, blocks_for(tokens))
    one = buffers_of(made, random_tensors(made, made.full, 1, seed=1), garbage=0)
    found = arena.gather(blocks_for(tokens), tokens)
    for layer, more in zip(found, one, strict=True):
        capacity = layer.both()[0].tokens
        layer.append(*more.both())
        assert layer.both()[0].tokens == layer.both()[1].tokens == capacity > tokens
        layer.filled = tokens
    assert same(held(found), wanted)


@pytest.mark.slow
@given(data=st.data())
def test_sequences_that_come_and_go_keep_their_bits(data: st.DataObject) -> None:
    """Several sequences in one arena, which share beginnings, are cut, and overwrite what is free."""
    made = geometry(mx.bfloat16, data.draw(st.sampled_from([1, 2])))
    arena = full_arena(made)
    free, sequences = list(range(BLOCKS)), []
    for seed in range(data.draw(st.integers(1, 4))):
        tokens = data.draw(st.integers(1, 3 * BLOCK_TOKENS))
        wanted = random_tensors(made, made.full, tokens, seed)
        shared: list[int] = []
        if sequences and data.draw(st.booleans()):
            other, blocks = data.draw(st.sampled_from(sequences))
            most = min(other["k.weights"].shape[2], tokens) // BLOCK_TOKENS
            shared = blocks[: data.draw(st.integers(0, most))]
            for name in TENSORS:
                wanted[name][:, :, : len(shared) * BLOCK_TOKENS] = other[name][:, :, : len(shared) * BLOCK_TOKENS]
        count = -(-tokens // BLOCK_TOKENS) - len(shared)
        if count > len(free):
            break
        new = [free.pop(data.draw(st.integers(0, len(free) - 1))) for _ in range(count)]
        arena.write(buffers_of(made, wanted, garbage=seed), len(shared) * BLOCK_TOKENS, new)
        sequences.append((wanted, [*shared, *new]))
    for wanted, blocks in sequences:
        most = wanted["k.weights"].shape[2]
        tokens = data.draw(st.integers(1, most))
        found = arena.gather(blocks[: -(-tokens // BLOCK_TOKENS)], tokens)
        assert same(held(found), cut(wanted, tokens))
        assert same(as_arrays(arena.read(blocks, most), made, made.full, most), wanted)


@shapes
def test_through_files_and_back(tmp_path: Path, dtype: mx.Dtype, heads: int) -> None:
    made, tokens = geometry(dtype, heads), 600
    arena, wanted = full_arena(made), random_tensors(made, made.full, 600)
    blocks = blocks_for(tokens)
    arena.write(buffers_of(made, wanted), 0, blocks)
    files = []
    for number, block in enumerate(blocks):
        count = min(BLOCK_TOKENS, tokens - number * BLOCK_TOKENS)
        header = BlockHeader("f", "n", bytes([number]) * 32, NO_PARENT, number * BLOCK_TOKENS, count)
        path = str(tmp_path / f"{number}.safetensors")
        digest, _ = write_block(path, header, arena.read([block], count), made)
        files.append(read_block(path, header, digest, made))
    other = full_arena(made, 1)
    for hot in range(len(blocks) + 1):
        source = arena if hot else other
        for room, capacity in [(0, 768), (700, 768), (769, 1024), (1400, 1536)]:
            found = source.gather(blocks[:hot], tokens, files[hot:], room)
            assert same(held(found), wanted), f"{hot} blocks from the arena, the rest from files"
            assert {part.shape[2] for layer in found for part in layer.arrays} == {capacity}
    assert same(held(arena.gather(blocks[:1], 500, files[1:2])), cut(wanted, 500)), "a part of the last file"


@shapes
@pytest.mark.parametrize("tokens", [BLOCK_TOKENS, 300])
def test_gathered_is_private(dtype: mx.Dtype, heads: int, tokens: int) -> None:
    made = geometry(dtype, heads)
    arena, wanted = full_arena(made), random_tensors(made, made.full, tokens)
    other = random_tensors(made, made.full, tokens, seed=1)
    blocks = blocks_for(tokens)
    arena.write(buffers_of(made, wanted), 0, blocks)
    first, second = arena.gather(blocks, tokens), arena.gather(blocks, tokens)
    arena.write(buffers_of(made, other), 0, blocks)
    assert same(held(first), wanted), "a write to the arena does not show"
    for layer, new in zip(first, buffers_of(made, random_tensors(made, made.full, 1, seed=2), 0), strict=True):
        layer.filled = 0
        layer.append(*new.both())
        mx.eval(layer.arrays)
    assert same(held(arena.gather(blocks, tokens)), other), "a write to the buffers does not reach the arena"
    assert same(held(second), wanted), "nor other buffers"


@shapes
@pytest.mark.parametrize("tokens", [BLOCK_TOKENS, 300, 3])
def test_what_was_read_stays_when_the_blocks_are_overwritten(dtype: mx.Dtype, heads: int, tokens: int) -> None:
    made = geometry(dtype, heads)
    arena, wanted = full_arena(made), random_tensors(made, made.full, tokens)
    blocks = blocks_for(tokens)
    arena.write(buffers_of(made, wanted), 0, blocks)
    data = arena.read(blocks, tokens)
    arena.write(buffers_of(made, random_tensors(made, made.full, tokens, seed=1)), 0, blocks)
    assert same(as_arrays(data, made, made.full, tokens), wanted)


@shapes
def test_an_arena_is_as_empty_after_it_was_warmed_up(dtype: mx.Dtype, heads: int) -> None:
    made = geometry(dtype, heads)
    arenas = Arenas(made, BLOCKS, PIECES)
    arenas.warm_up()
    for block in range(BLOCKS):
        assert not any(map(any, arenas.read_block(block, BLOCK_TOKENS).values()))
    for piece in range(PIECES):
        assert not any(map(any, arenas.sliding.read([piece], made.piece_tokens).values()))


@shapes
def test_no_other_block_is_touched(dtype: mx.Dtype, heads: int) -> None:
    made = geometry(dtype, heads)
    arena = full_arena(made)
    every = random_tensors(made, made.full, BLOCKS * BLOCK_TOKENS)
    arena.write(buffers_of(made, every), 0, range(BLOCKS))
    new = random_tensors(made, made.full, 300, seed=1)
    arena.write(buffers_of(made, new), 0, [7, 2])
    arena.write(buffers_of(made, new), 0, [])
    found = as_arrays(arena.read(range(BLOCKS), BLOCKS * BLOCK_TOKENS), made, made.full, BLOCKS * BLOCK_TOKENS)
    for block in set(range(BLOCKS)) - {7, 2}:
        at = block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS
        assert same(cut(found, at[1], at[0]), cut(every, at[1], at[0]))


@shapes
@pytest.mark.parametrize("surplus", [0, 1, 100])
def test_uploaded_is_the_file_without_its_surplus(dtype: mx.Dtype, heads: int, surplus: int) -> None:
    made = geometry(dtype, heads)
    assert made.sliding is not None
    arena = Arena(made, made.sliding, PIECES, made.piece_tokens)
    wanted = random_tensors(made, made.sliding, 300)
    file = as_file({name: array.copy() for name, array in wanted.items()}, made)
    found = arena.upload(file, surplus)
    for array in file.values():
        array.flags.writeable = True
        array[...] = 0
    assert [layer.filled for layer in found] == [300 - surplus] * 2
    assert same(held(found), cut(wanted, 300 - surplus)), "and no view of the file's bytes"


@shapes
@pytest.mark.parametrize("window", [64, 100, 256, 300])
@pytest.mark.parametrize(("tokens", "surplus"), [(1, 0), (64, 10), (150, 0), (150, 149), (320, 5), (320, 256)])
def test_windows_in_pieces(dtype: mx.Dtype, heads: int, window: int, tokens: int, surplus: int) -> None:
    """Whatever a piece holds and wherever the tokens end in it."""
    made = geometry(dtype, heads, window)
    assert made.sliding is not None
    arenas = Arenas(made, 1, PIECES)
    wanted = random_tensors(made, made.sliding, tokens)
    pieces = [int(p) for p in np.random.default_rng(1).permutation(PIECES)[: -(-tokens // made.piece_tokens)]]
    caches = caches_of(made, 1, random_tensors(made, made.full, 1), wanted)
    arenas.write(caches, 0, [0], pieces)
    found = arenas.sliding.gather(pieces, tokens - surplus)
    assert [layer.filled for layer in found] == [tokens - surplus] * 2
    assert same(held(found), cut(wanted, tokens - surplus))
    assert found[0].both()[0].tokens > tokens - surplus
    data = arenas.sliding.read(pieces, tokens)
    assert same(as_arrays(data, made, made.sliding, tokens), wanted)
    assert window_tensors([caches[layer].buffers for layer in made.sliding.layers]) == data
    file = as_file(as_arrays(data, made, made.sliding, tokens), made)
    assert same(held(arenas.sliding.upload(file, surplus)), cut(wanted, tokens - surplus))


def caches_of(
    made: Geometry, offset: int, full: dict[str, np.ndarray], sliding: dict[str, np.ndarray] | None = None
) -> Caches:
    """Caches of one sequence, in the order of the model's layers."""
    caches = made.new_caches()
    for layer, buffers in zip(made.full.layers, buffers_of(made, full), strict=True):
        caches[layer].buffers = buffers
    if sliding is not None and made.sliding is not None:
        for layer, buffers in zip(made.sliding.layers, buffers_of(made, sliding), strict=True):
            cache = caches[layer]
            assert isinstance(cache, SlidingQuantizedKVCache)
            cache.buffers, cache.offset = buffers, offset
    return caches


@shapes
def test_caches_of_a_hybrid_model(dtype: mx.Dtype, heads: int) -> None:
    made = geometry(dtype, heads)
    assert made.sliding is not None
    arenas = Arenas(made, BLOCKS, PIECES)
    full, sliding = random_tensors(made, made.full, 600), random_tensors(made, made.sliding, 310)
    blocks, pieces = [5, 0, 8], [7, 3, 4, 11, 0]
    arenas.write(caches_of(made, 600, full, sliding), 0, blocks, pieces)
    file = as_file(as_arrays(arenas.read_block(blocks[2], 88), made, made.full, 88), made)
    for tokens, numbers, files in [(600, blocks, []), (600, blocks[:2], [file]), (590, blocks, [])]:
        found = arenas.caches(tokens, numbers, files, arenas.checkpoint(pieces, 310 - (600 - tokens), tokens))
        assert [type(cache) for cache in found] == [type(cache) for cache in made.new_caches()]
        assert {cache.offset for cache in found} == {tokens}
        assert {cache.window for cache in found if isinstance(cache, SlidingQuantizedKVCache)} == {64}
        assert same(held([found[layer].buffers for layer in made.full.layers]), cut(full, tokens))
        wanted = cut(sliding, 310 - (600 - tokens))
        assert same(held([found[layer].buffers for layer in made.sliding.layers]), wanted)


def test_caches_of_a_model_without_windows() -> None:
    made = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((0, 1), 2, 64, 64))
    arenas, wanted = Arenas(made, BLOCKS, 0), random_tensors(made, made.full, 300)
    assert arenas.nbytes == BLOCKS * BLOCK_TOKENS * made.bytes_per_token
    arenas.write(caches_of(made, 300, wanted), 0, [4, 1], [])
    found = arenas.caches(300, [4, 1], [])
    assert [type(cache) for cache in found] == [QuantizedKVCache] * 2
    assert same(held([cache.buffers for cache in found]), wanted)


@pytest.mark.parametrize("new", [1, 200, 300])
def test_caches_with_room_for_the_prompt_do_not_grow_while_it_is_computed(new: int) -> None:
    made = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((0, 1), 2, 64, 64))
    arenas, wanted = Arenas(made, BLOCKS, 0), random_tensors(made, made.full, 500)
    arenas.write(caches_of(made, 500, wanted), 0, [4, 1], [])
    for cache in arenas.caches(500, [4, 1], [], room=500 + new):
        shapes_before = [part.shape for part in cache.state]
        cache.update_and_fetch(mx.zeros((1, 2, new, 64)), mx.zeros((1, 2, new, 64)))
        assert cache.offset == 500 + new
        assert [part.shape for part in cache.state] == shapes_before


def test_host_bytes_are_a_copy_even_of_what_is_contiguous() -> None:
    array = mx.zeros((4, 4))
    mx.eval(array)
    data = host_bytes(array[1])
    array[1] = 1.0
    mx.eval(array)
    assert data == bytes(16)
