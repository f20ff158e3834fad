"""Decode steps that write K and V where their buffers are: what is written and seen, and whose memory it is.

Kernels run as g++ compiles them, one after the other, so steps are not traced here. On an NVIDIA GPU they are, and many
are computed in one graph.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from inference_service.engine.attention.flash_decoding import flash_decoding
from inference_service.engine.attention.flash_latents import flash_latents
from inference_service.engine.caches.traced import TokenRange, TracedKVCache
from inference_service.engine.compiled_step import CompiledSteps

from inference_service.engine import cuda_encoding
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import available
from inference_service.engine.geometry import Caches, merged
from inference_service.engine.quantization import KVFormat, Quantized
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import compiled_problem
from tests.inference_service.engine.test_compiled_step import assert_equal, both_ways, loaded, tokens
from tests.tiny_hybrids import write_falcon_h1
from tests.tiny_models import write_deepseek2, write_gemma3, write_llama

pytestmark = pytest.mark.sampled(3)

Writer = Callable[[Path], Path]
Buffers = tuple[Quantized, Quantized]
WINDOW = 16


@pytest.fixture(autouse=True)
def taken(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_encoding, "available", lambda: True)
    if not available():
        monkeypatch.setattr(mx, "compile", lambda step: step)


def random(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def numbers(array: mx.array) -> np.ndarray[Any, Any]:
    return np.array(array if array.dtype == mx.uint32 else array.astype(mx.float32))


def with_room(packed: Buffers, filled: int) -> Buffers:
    """The first tokens, and zeros behind them."""
    held = tuple(side.between(0, filled).followed_by(side.blank(side.tokens - filled)) for side in packed)
    mx.eval(held)
    return held[0], held[1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("k_dim", "v_dim", "group_size"), [(64, 64, 32), (80, 64, 32), (512, 64, 64)])
def test_what_is_written_is_what_would_be_packed(
    k_dim: int, v_dim: int, group_size: int, centred: bool, dtype: mx.Dtype
) -> None:
    k = random(3, 40, 2, k_dim, dtype=dtype).swapaxes(1, 2)  # as a projection gives them
    v = random(3, 2, 40, v_dim, dtype=dtype, seed=1)
    means = (random(2, k_dim, dtype=dtype, seed=2), random(2, v_dim, dtype=dtype, seed=3)) if centred else None
    codec = KVCodec(KVFormat(5, 4, group_size), means)
    packed = codec.encode(k, v)
    buffers = with_room(packed, 20)
    end = codec.write(k[:, :, 20:33], v[:, :, 20:33], buffers, mx.array([20]))
    assert end is not None
    assert end.tolist() == [33]
    for side, wanted in zip(buffers, packed, strict=True):
        for found, whole in zip(side, wanted, strict=True):
            assert np.array_equal(numbers(found)[:, :, :33], numbers(whole)[:, :, :33])
            assert not numbers(found)[:, :, 33:].any()


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 7, 33])
@pytest.mark.parametrize("end", [32, 151, 200])
def test_a_range_is_what_its_mask_would_be(end: int, window: int) -> None:
    """Rows that begin anywhere, in chunks of which some are empty; with sinks and means."""
    codec = KVCodec(means=(random(2, 64), random(2, 64, seed=1)))
    packed = codec.encode(random(3, 2, 200, 64, seed=2), random(3, 2, 200, 64, seed=3))
    queries, sinks = random(3, 4, 1, 64, seed=4), random(4, seed=5)
    first, at = mx.array([0, 5, end - 1]), mx.arange(200)
    seen = (at >= first[:, None, None, None]) & (at < end) & (at >= end - (window or end))
    wanted = flash_decoding(queries, *packed, codec, 0.125, seen, sinks)
    found = flash_decoding(queries, *packed, codec, 0.125, TokenRange(first, mx.array([end]), window), sinks)
    assert mx.allclose(found, wanted, atol=1e-5)


@pytest.mark.slow("32-0")
@pytest.mark.parametrize("window", [0, 33])
@pytest.mark.parametrize("end", [32, 151, 200])
def test_a_range_of_latents_is_what_its_mask_would_be(end: int, window: int) -> None:
    codec = KVCodec()
    packed = codec.encode(random(2, 1, 200, 128, dtype=mx.float16), random(2, 1, 200, 64, dtype=mx.float16, seed=1))
    queries = [random(2, 4, 1, width, dtype=mx.float16, seed=width) for width in (128, 64)]
    first, at = mx.array([0, end - 20]), mx.arange(200)
    seen = (at >= first[:, None, None, None]) & (at < end) & (at >= end - (window or end))
    wanted = flash_latents(*queries, *packed, codec, 0.07, seen)
    found = flash_latents(*queries, *packed, codec, 0.07, TokenRange(first, mx.array([end]), window))
    assert mx.allclose(found, wanted, atol=3e-3)


def narrow_gemma3(directory: Path) -> Path:
    return write_gemma3(directory, window=WINDOW)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, narrow_gemma3, write_falcon_h1])
def test_steps_are_those_that_write_new_arrays(write: Writer, tmp_path: Path) -> None:
    """In rows of different lengths, and in buffers that grow meanwhile; packed K and V bit for bit."""
    assert_equal(*both_ways(loaded(write(tmp_path)), 8, in_place=True))


@pytest.mark.slow
def test_steps_over_latents_are_those_that_write_new_arrays(tmp_path: Path) -> None:
    """In 16 bits, as the kernel over latents wants it; but for the experts, of which MLX has no such products on a CPU.
    They come last.
    """
    model = loaded(write_deepseek2(tmp_path))
    network = model.engine.model.model
    network.set_dtype(mx.float16)
    network.model.layers[-1].mlp.switch_mlp.set_dtype(mx.float32)
    geometry = replace(model.geometry, dtype=mx.float16)
    assert geometry.latents
    assert not compiled_problem(model.engine.model, geometry, in_place=True)


def blind_to_itself(seen: TokenRange) -> TokenRange:
    return seen._replace(end=seen.end - 1)


def sees_padding(seen: TokenRange) -> TokenRange:
    return seen._replace(first=mx.zeros_like(seen.first))


def too_wide_a_window(seen: TokenRange) -> TokenRange:
    return seen._replace(window=seen.window and seen.window + 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [blind_to_itself, sees_padding, too_wide_a_window])
def test_faults_of_what_is_seen_are_found(
    fault: Callable[[TokenRange], TokenRange], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TracedKVCache.update_and_fetch

    def update_and_fetch(self: TracedKVCache, keys: mx.array, values: mx.array) -> Buffers:
        found = original(self, keys, values)
        if self.seen:
            self.seen = fault(self.seen)
        return found

    monkeypatch.setattr(TracedKVCache, "update_and_fetch", update_and_fetch)
    model = loaded(narrow_gemma3(tmp_path))
    assert both_ways(model, 3, in_place=True)[0] > 1e-3


@pytest.mark.slow
def test_a_kernel_that_does_not_write_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCodec, "write", lambda self, keys, values, into, slot: slot + 1)
    model = loaded(write_llama(tmp_path))
    assert "differ" in compiled_problem(model.engine.model, model.geometry, in_place=True)


def test_what_no_kernel_writes_cannot_be_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_encoding, "available", lambda: False)
    model = loaded(write_llama(tmp_path))
    assert compiled_problem(model.engine.model, model.geometry, in_place=True) == "they cannot be traced"


def after(model: LoadedModel, length: int, seed: int = 0) -> Caches:
    """Caches of one sequence behind a prompt."""
    caches = model.new_caches()
    prompt = [1 + (5 + 2 * seed) * at % 31 for at in range(length)]
    mx.eval(model.engine.model.computed(mx.array([prompt]), caches), [cache.state for cache in caches])
    return caches


def held(caches: Caches) -> list[np.ndarray[Any, Any]]:
    return [numbers(array) for cache in caches for side in cache.buffers.view() for array in side]


def equal(one: list[np.ndarray[Any, Any]], other: list[np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def near(one: list[np.ndarray[Any, Any]], other: list[np.ndarray[Any, Any]]) -> bool:
    """Attention by another path rounds otherwise: then codes may be the next ones."""

    def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
        return bool((a != b).mean() < 0.01) if a.dtype == np.uint32 else np.allclose(a, b, rtol=1e-3, atol=1e-3)

    return all(close(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_what_others_hold_stays_as_it_is(tmp_path: Path) -> None:
    """The sequence that a batch of one row was made of, even where it goes on from fewer tokens; and rows that were
    taken out on the way, when the batch goes on.
    """
    model = loaded(write_llama(tmp_path))
    steps = CompiledSteps(model.engine.model.computed, steps_before=0, in_place=True)
    sequence = after(model, 40)
    before = held(sequence)
    batch = merged(sequence)
    for step in range(3):
        assert steps.step(tokens(step, 1), batch) is not None
    assert equal(held(sequence), before)
    for cache in sequence:
        cache.trim(5)
        cache.update_and_fetch(*(random(1, 2, 8, 16, seed=step) for step in (1, 2)))
    changed = held(sequence)
    taken_out = [cache.extract(0) for cache in batch]
    written = held(taken_out)
    assert [cache.offset for cache in taken_out] == [43] * len(taken_out)
    for step in range(3, 6):
        assert steps.step(tokens(step, 1), batch) is not None
    assert equal(held(taken_out), written)
    assert equal(held(sequence), changed)
    wanted = merged(after(model, 40))
    for step in range(6):
        model.engine.model.computed(tokens(step, 1), wanted)
    assert near(held(batch), held(wanted))


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, narrow_gemma3])
def test_steps_go_on_behind_several_tokens_of_which_some_were_dropped(write: Writer, tmp_path: Path) -> None:
    model = loaded(write(tmp_path))
    network = model.engine.model.computed
    steps = CompiledSteps(network, steps_before=0, in_place=True)
    batch, wanted = merged(after(model, 40)), merged(after(model, 40))
    for first in range(0, 12, 4):
        assert steps.step(tokens(first, 1), batch) is not None
        mx.eval(network(mx.concatenate([tokens(first + 1, 1), tokens(first + 2, 1), tokens(7, 3).T], axis=1), batch))
        for cache in batch:
            cache.trim(3)
        assert steps.step(tokens(first + 3, 1), batch) is not None
        for step in range(first, first + 4):
            network(tokens(step, 1), wanted)
        assert near(held(batch), held(wanted))
        assert [cache.offsets for cache in batch] == [cache.offsets for cache in wanted]


@pytest.mark.slow
def test_rows_join_and_leave_what_is_written_in_place(tmp_path: Path) -> None:
    model = loaded(write_llama(tmp_path))
    steps = CompiledSteps(model.engine.model.computed, steps_before=0, in_place=True)

    def run(step: Callable[[mx.array, Caches], Any]) -> Caches:
        batch, other = merged(after(model, 30)), merged(after(model, 50, seed=1))
        for number in range(2):
            step(tokens(number, 1), batch)
        for cache, more in zip(batch, other, strict=True):
            cache.extend(more)
        for number in range(2, 4):
            step(tokens(number, 2), batch)
        for cache in batch:
            cache.filter([0])
        for number in range(4, 6):
            step(tokens(number, 1), batch)
        return batch

    found, wanted = run(steps.step), run(model.engine.model.computed)
    assert [cache.offsets for cache in found] == [[36]] * len(found)
    assert near(held(found), held(wanted))


@pytest.mark.slow
def test_steps_alternate_with_eager_ones(tmp_path: Path) -> None:
    """Each goes on where the other one ended."""
    model = loaded(write_llama(tmp_path))
    steps = CompiledSteps(model.engine.model.computed, steps_before=0, in_place=True)
    batch, wanted = (merged(after(model, 40)) for _ in range(2))
    for step in range(8):
        in_turn = model.engine.model.computed if step % 3 == 2 else steps.step
        assert in_turn(tokens(step, 1), batch) is not None
        model.engine.model.computed(tokens(step, 1), wanted)
    assert near(held(batch), held(wanted))
