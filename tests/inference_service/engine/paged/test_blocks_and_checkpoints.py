"""Blocks, checkpoints and files of KV that no model computed: what is kept, what memory it takes, and that it stays."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged import arena as arena_module
from inference_service.engine.paged.arena import Arena
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.passes import ArrayKVCache, Pass, Piece, StatesCache
from inference_service.engine.paged.sequence import SLACK, Sequence, States
from inference_service.engine.paged.store import KVStore
from tests.inference_service.engine.paged.bits import (
    CASES,
    Case,
    as_file,
    cut,
    data_of,
    every_case,
    geometry,
    random_bits,
)


def fed(store: KVStore, sequence: Sequence, kv: dict[int, tuple[mx.array, mx.array]], n: int) -> None:
    """The next n tokens of K and V by layer."""
    of = Pass([Piece(sequence, n)])
    at = sequence.length
    caches = store.caches(of)
    for layer, cache in enumerate(caches):
        if isinstance(cache, ArrayKVCache):
            cache.update_and_fetch(*(x[:, :, at : at + n] for x in kv[layer]))
        elif isinstance(cache, StatesCache):
            cache.cache = [mx.full((1, 3, 8), at + n, mx.float32), mx.full((1, 2), at + n, mx.bfloat16)]
    written = store.taken(of, caches)
    mx.eval(written.state, [cache.state for cache in caches])
    written.put()


def random_kv(made: Geometry, tokens: int) -> dict[int, tuple[mx.array, mx.array]]:
    found = {}
    for group in made.groups:
        for layer in group.layers:
            k, v = (
                mx.random.normal((1, group.kv_heads, tokens, width), key=mx.random.key(layer + 10 * side))
                for side, width in enumerate((group.k_dim, group.v_dim))
            )
            found[layer] = k.astype(made.dtype), v.astype(made.dtype)
    return found


@every_case
@pytest.mark.parametrize("window", [64, 100, 300])
@pytest.mark.parametrize("steps", [[1], [64], [320, 1], [200, 1, 1, 450, 3], [700]])
def test_files_hold_what_would_be_packed_of_all_tokens(case: Case, window: int, steps: list[int]) -> None:
    made = geometry(case, window, states=True)
    kv = random_kv(made, 700)
    store = KVStore(made, 4, 2 * made.checkpoint_pieces)
    sequence = store.sequence([2, 0, 3], range(made.checkpoint_pieces))
    for n in steps:
        fed(store, sequence, kv, n)
    tokens, kept = sum(steps), min(sum(steps), window + SLACK)

    def packed(group: Any, start: int, end: int) -> dict[str, bytes]:
        found: dict[str, list[Any]] = {name: [] for name in made.shapes(group, 1)}
        for layer in group.layers:
            for side, quantized in zip("kv", store.codecs[layer].encode(*kv[layer]), strict=True):
                for part, array in quantized._asdict().items():
                    bits = array.view(mx.uint16) if array.dtype.size == 2 else array
                    found[f"{side}.{part}"].append(np.array(bits)[:, :, start:end])
        return data_of({name: np.concatenate(arrays) for name, arrays in found.items()})

    for block, start in zip([2, 0, 3], range(0, tokens, BLOCK_TOKENS), strict=False):
        end = min(tokens, start + BLOCK_TOKENS)
        assert store.read_block(block, end - start)() == packed(made.full, start, end)
    checkpoint = store.checkpoints.capture(sequence, last=True)
    assert checkpoint is not None
    assert checkpoint[:2] == (tokens, kept)
    assert len(checkpoint.pieces) <= made.checkpoint_pieces
    data = store.checkpoints.read(checkpoint)()
    states = {
        "state.5.0": np.full((3, 8), tokens, np.float32).tobytes(),
        "state.5.1": np.array(mx.full((2,), tokens, mx.bfloat16).view(mx.uint16)).tobytes(),
    }
    assert data == packed(made.sliding, tokens - kept, tokens) | states
    file = as_file(data, made.checkpoint_shapes(kept))
    own = range(made.checkpoint_pieces, 2 * made.checkpoint_pieces)
    again = store.started(Start([2, 0, 3], own, tokens, window_file=file, arrays=False))
    captured = store.checkpoints.capture(again, last=True)
    assert captured is not None
    assert set(captured.pieces).isdisjoint(checkpoint.pieces)
    assert store.checkpoints.read(captured)() == data


def test_memory_is_taken_by_segments_and_states_go_with_their_pieces() -> None:
    made = geometry(CASES[1], states=True)
    kv = random_kv(made, 300)
    each = made.checkpoint_pieces
    store = KVStore(made, 8, 4 * each, segments=(2, each))
    empty = store.nbytes
    sequence = store.sequence([5, 0], range(2 * each, 3 * each))
    taken = store.nbytes
    assert taken == empty + 2 * store.full.layout.nbytes + each * store.windows.layout.nbytes  # type: ignore[union-attr]
    fed(store, sequence, kv, 300)
    checkpoint = store.checkpoints.capture(sequence, last=True)
    assert checkpoint is not None
    assert store.nbytes == taken + made.state_bytes
    data = store.checkpoints.read(checkpoint)()
    store.release([1], [1])
    assert store.checkpoints.read(checkpoint)() == data
    store.release([2], [2])
    assert store.nbytes == empty
    with pytest.raises(LookupError):
        store.checkpoints.read(checkpoint)()
    store.close()
    assert not store.nbytes


def test_a_sequence_without_memory_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = geometry()
    store = KVStore(made, 8, 40, segments=(2, 10))
    monkeypatch.setattr(arena_module, "free_bytes", lambda: 1000)
    before = store.nbytes
    with pytest.raises(MemoryError):
        store.started(Start([0, 5], range(8)))
    with pytest.raises(MemoryError):
        store.started(Start([0, 1], range(20, 28)))
    assert store.nbytes == before
    assert store.started(Start([0, 1], range(8))).length == 0


def test_what_assigns_to_elements_of_a_state_does_not_change_the_checkpoint() -> None:
    made = geometry(states=True)
    kv = random_kv(made, 300)
    store = KVStore(made, 4, 60)
    sequence = store.sequence([2, 0], range(20))
    fed(store, sequence, kv, 300)
    checkpoint = store.checkpoints.capture(sequence)
    assert checkpoint is not None
    data = store.checkpoints.read(checkpoint)()
    again = store.started(Start([2, 0], range(20, 40), 300, 300, checkpoint=checkpoint))
    for each in (sequence, again):
        cache = store.caches(Pass([Piece(each, 1)]))[-1]
        assert isinstance(cache, StatesCache)
        assert cache.cache[0] is not None
        cache.cache[0][0, 0] = 7.0
        mx.eval(cache.state)
    assert store.checkpoints.read(checkpoint)() == data


def test_views_of_a_chunk_do_not_keep_the_chunk() -> None:
    store = KVStore(geometry(window=0, states=True), 4, 8)
    sequence = store.sequence([0], [0])
    of = Pass([Piece(sequence, 200)])
    caches = store.caches(of)
    chunk = mx.zeros((1, 4096, 256))
    mx.eval(chunk)
    [cache] = [each for each in caches if isinstance(each, StatesCache)]
    cache.cache = [chunk[:, -3:], chunk[:, 5:7]]
    written = store.taken(of, caches)
    mx.eval(written.state)
    held_bytes = mx.get_active_memory()
    written.put()
    del chunk, cache, caches
    assert isinstance(sequence.states, States)
    assert mx.get_active_memory() <= held_bytes - 4096 * 256 * 4


def test_a_file_is_read_into_its_block() -> None:
    made = geometry(CASES[3])
    store = KVStore(made, 4, 20)
    buffers = store.host_buffers(2, 100)
    assert buffers is not None
    rng, wanted = np.random.default_rng(0), {}
    for name, (_, shape) in made.block_shapes(100).items():
        assert [view.shape for view in buffers[name]] == [shape[1:]] * shape[0]
        wanted[name] = rng.integers(0, 1 << 16, shape).astype(buffers[name][0].dtype)
        for view, layer in zip(buffers[name], wanted[name], strict=True):
            np.copyto(view, layer)
    assert store.read_block(2, 100)() == data_of(wanted)


@every_case
@pytest.mark.parametrize("states", [False, True])
def test_files_come_out_of_the_pool_as_they_went_in(kind: type[Arena], case: Case, states: bool) -> None:
    made, tokens, window = geometry(case, 100, states=states), 700, 340
    each = made.checkpoint_pieces
    store = KVStore(made, 9, 4 * each)
    file = random_bits(made.checkpoint_shapes(window), 1)
    blocks = random_bits(made.block_shapes(3 * BLOCK_TOKENS), 2)
    files = [cut(blocks, at, min(at + BLOCK_TOKENS, tokens)) for at in range(0, tokens, BLOCK_TOKENS)]
    placed = list(zip([5, 0, 7], files, strict=True))
    start = Start([5, 0, 7], range(each), tokens, files=placed, window_file=file, arrays=False)
    one = store.started(start)
    checkpoint = store.checkpoints.capture(one, last=True)
    assert checkpoint is not None
    assert checkpoint[:2] == (tokens, window)
    fewer = 0 if states else 17
    own = range(2 * each, 3 * each)
    hot = Start([5, 0, 8], own, tokens - fewer, 512, (7, 8), checkpoint=checkpoint, arrays=False)
    warm = replace(start, pieces=range(3 * each, 4 * each), tokens=tokens - fewer, window_surplus=fewer)
    for again in (store.started(hot), store.started(warm)):
        captured = store.checkpoints.capture(again, last=True)
        assert captured is not None
        assert captured[:2] == (tokens - fewer, window - fewer)
        names = made.shapes(made.sliding, 1)  # type: ignore[arg-type]
        wanted = {name: x[:, :, : window - fewer] if name in names else x for name, x in file.items()}
        assert store.checkpoints.read(captured)() == data_of(wanted)
        assert store.full.read_run(again.full.blocks, 0, tokens)() == data_of(cut(blocks, 0, tokens))
    assert store.checkpoints.read(checkpoint)() == data_of(file)


@every_case
@pytest.mark.parametrize("states", [False, True])
def test_going_on_from_the_pool_waits_for_no_pass(
    kind: type[Arena], case: Case, states: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of others run meanwhile: a turn that joins them would stop the engine until they have ended."""
    made, tokens = geometry(case, 100, states=states), 300
    each = made.checkpoint_pieces
    store = KVStore(made, 4, 3 * each)
    one = store.started(Start([0, 1], range(each)))
    fed(store, one, random_kv(made, tokens), tokens)
    start = Start([0, 2], range(2 * each, 3 * each), tokens, 256, (1, 2), checkpoint=store.capture(one), arrays=False)

    def no_wait(wait: Callable[..., None]) -> Callable[..., None]:
        def waiting(*of: object) -> None:
            caller = inspect.currentframe().f_back.f_globals["__name__"]  # type: ignore[union-attr]
            assert caller.startswith("tests."), "it waits for the device, and not because there is none here"
            wait(*of)

        return waiting

    with monkeypatch.context() as patch:
        for name in ("eval", "synchronize"):
            patch.setattr(mx, name, no_wait(getattr(mx, name)))
        assert store.started(start).length == tokens
