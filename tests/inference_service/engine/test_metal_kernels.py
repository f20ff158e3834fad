"""The kernel for Apple's GPUs over packed K and V: right on such a GPU, and its device code wherever g++ is."""

from collections.abc import Callable
from itertools import product

import mlx.core as mx
import pytest
from inference_service.engine.attention.speed import MEASURED, PathChoice

from inference_service.engine.attention import METAL_FLASH_DECODING, metal_flash_decoding, paths, self_test
from inference_service.engine.attention.chunks import joined
from inference_service.engine.attention.self_test import decode_error, over_caches, plain_attention
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry
from inference_service.engine.metal_kernel import available
from inference_service.engine.quantization import PLAIN, ROTATED, KVFormat, Quantization, quantize
from tests.inference_service.engine.geometries import OF_16_BITS, SHAPES, geometry
from tests.inference_service.engine.metal_on_cpu import MetalOnCPU
from tests.inference_service.engine.test_cuda_kernels import NARROW, PAIRS, with_bits

attend = metal_flash_decoding.metal_flash_decoding

needs_metal = pytest.mark.skipif(not available(), reason="as many elements as real models have take a GPU")
on_cpu = pytest.mark.skipif(available(), reason="of kernels as g++ compiles them")
TYPES = (mx.float32, mx.bfloat16, mx.float16)


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW])
def test_one_query_is_right(shape: Geometry, metal_kernels: None) -> None:
    assert decode_error(over_caches(attend), shape) < (1e-4 if shape.dtype == mx.float32 else 3e-2)


@needs_metal
@pytest.mark.parametrize("shape", OF_16_BITS)
def test_one_query_of_real_models_is_right(shape: Geometry) -> None:
    assert decode_error(over_caches(attend), shape) < 3e-2


@pytest.mark.slow
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_bits_of_k_and_v_apart_are_right(k: int, v: int, metal_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_DECODE", ((1, (70, 20)),))
    shape = with_bits(geometry(k_dim=96, v_dim=32), k, v)
    assert decode_error(over_caches(attend), shape) < 1e-4


@pytest.mark.slow
@pytest.mark.sampled(15)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("scheme", [PLAIN, ROTATED])
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_types_and_schemes_are_right(
    k: int, v: int, scheme: str, dtype: mx.Dtype, metal_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "_DECODE", ((1, (70, 20)),))
    shape = with_bits(geometry(dtype=dtype, window=30), k, v, scheme)
    assert decode_error(over_caches(attend), shape) < (1e-4 if dtype == mx.float32 else 3e-2)


@pytest.mark.slow("300-8", "64-64")
@pytest.mark.parametrize(("tokens", "chunk"), [(1, 64), (3, 64), (64, 64), (65, 64), (300, 8), (512, 256)])
def test_any_number_of_tokens(tokens: int, chunk: int, metal_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of fewer than 8 elements, which MLX passes in another address space; and more chunks than lanes."""
    monkeypatch.setattr(metal_flash_decoding, "_SHORTEST_CHUNK", chunk)
    assert error_of(tokens, tokens // 2) < 1e-5


def error_of(tokens: int, hidden: int) -> float:
    """The error with one head over so many tokens, the first of which are hidden; with a sink and means."""
    keys = iter(mx.random.split(mx.random.key(3), 5))
    q, k, v = (mx.random.normal((1, 1, n, 64), key=next(keys)) for n in (1, tokens, tokens))
    codec = KVCodec(KVFormat(4, 4, 32), (mx.random.normal((1, 64), key=next(keys)), mx.ones((1, 64))))
    sinks, mask = mx.array([1.5]), mx.arange(tokens) >= hidden
    packed = codec.encode(k, v)
    k, v = codec.decode(*packed)
    exact = plain_attention(q, k[:, :, hidden:], v[:, :, hidden:], 0.2, sinks=sinks)
    return float(mx.abs(attend(q, *packed, codec, 0.2, mask, sinks) - exact).max().item())


@pytest.mark.slow
def test_widths_that_do_not_fill_groups(metal_kernels: None) -> None:
    """Queries of 80 over K of 96: outputs are as wide as packed V, and what fills it up is cut off later."""
    keys = iter(mx.random.split(mx.random.key(4), 5))
    q, k, v = (mx.random.normal((2, 4, tokens, 80), key=next(keys)) for tokens in (1, 70, 70))
    means = tuple(mx.random.normal((4, 80), key=next(keys)) for _ in "kv")
    codec = KVCodec(KVFormat(5, 3, 32), (means[0], means[1]))
    packed = codec.encode(k, v)
    found = attend(q, *packed, codec, 0.1, None, None)
    k, v = codec.decode(*packed)
    assert found.shape == (2, 4, 1, 96)
    assert mx.allclose(found, plain_attention(mx.pad(q, [(0, 0)] * 3 + [(0, 16)]), k, v, 0.1), atol=1e-4)


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
CHUNKS, MERGE = "flash_decoding", "joined"
LEFT_OUT = {
    "signs": (CHUNKS, "float with_sign(float x, int element) {", "return x;"),
    "rotation of queries": (CHUNKS, "void transform_row(thread float* x, int lane) {", "return;"),
    "rotation of outputs": (MERGE, "float* memory, int thread_index, int lane) {", "return x;"),
    "mean of keys": (MERGE, "int thread_index, int lane) {\nfloat sum = 0.0f;", "return sum;"),
}


@pytest.mark.slow("rotation of queries", "signs")
@on_cpu
@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_what_is_left_out_of_a_kernel_is_a_fault_that_shows(
    left_out: str, metal_kernels: None, metal_on_cpu: MetalOnCPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, begin, rest = LEFT_OUT[left_out]
    done = change(metal_on_cpu, monkeypatch, kernel, lambda code: code.replace(begin, begin + rest, 1))
    assert error_of(150, 0) > 1e-2
    assert done == [True]


@pytest.mark.slow
@on_cpu
def test_what_is_read_behind_an_array_is_a_fault_that_shows(
    metal_kernels: None, metal_on_cpu: MetalOnCPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(metal_on_cpu, monkeypatch, CHUNKS, lambda code: code.replace("min(token, tokens - 1)", "token"))
    with pytest.raises(RuntimeError, match="heap-buffer-overflow"):
        error_of(50, 0)


@pytest.mark.slow
@on_cpu
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kernel", "which"), [*product([CHUNKS], range(6)), *product([MERGE], range(3))])
def test_a_barrier_that_is_left_out_shows(
    kernel: str, which: int, metal_kernels: None, metal_on_cpu: MetalOnCPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(code: str) -> str:
        parts = code.split(BARRIER)
        assert len(parts) == (7 if kernel == CHUNKS else 4)
        return BARRIER.join(parts[: which + 1]) + ";" + BARRIER.join(["", *parts[which + 1 :]])[len(BARRIER) :]

    done = change(metal_on_cpu, monkeypatch, kernel, without)
    assert not error_of(300, 0) < 1e-5
    assert done == [True]


def change(
    metal_on_cpu: MetalOnCPU, monkeypatch: pytest.MonkeyPatch, name: str, by: Callable[[str], str]
) -> list[bool]:
    """From now on a kernel of this name has its code changed; whether it was, for each."""
    changes = []

    def changed(*, header: str, source: str, **others: object) -> object:
        if str(others["name"]).startswith(name):
            code = by(header + "\0" + source)
            changes.append(code != header + "\0" + source)
            header, source = code.split("\0")
        return metal_on_cpu(header=header, source=source, **others)

    monkeypatch.setattr(mx.fast, "metal_kernel", changed)
    return changes


@pytest.mark.parametrize(
    "changed", [{"bits": 2}, {"width": 520}, {"scales": mx.float16}], ids=["bits", "width", "scales"]
)
def test_what_the_kernel_does_not_know_is_refused(changed: dict[str, object]) -> None:
    bits, width = changed.get("bits", 4), changed.get("width", 64)
    assert isinstance(bits, int) and isinstance(width, int)
    side = quantize(mx.zeros((1, 1, 4, 64)), Quantization(4, 32))
    if "scales" in changed:
        side = side._replace(scales=side.scales.astype(mx.float16))
    with pytest.raises(ValueError, match="flash decoding"):
        attend(mx.zeros((1, 2, 1, width)), side, side, KVCodec(KVFormat(bits, bits, 32)), 1.0, None, None)


def test_means_of_another_type_are_refused() -> None:
    codec = KVCodec(means=(mx.zeros((1, 64)), mx.zeros((1, 64))))
    stats, partial = mx.zeros((1, 1, 1, 3, 2)), mx.zeros((1, 1, 1, 3, 64))
    merge = metal_flash_decoding._merge_kernel
    with pytest.raises(ValueError, match="means of another type"):
        joined(stats, partial, mx.zeros((1, 1, 1, 64), mx.float16), 1.0, None, codec, codec.v_mean, merge)


def test_it_is_tried_where_metal_is_and_taken_only_where_it_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "metal_available", lambda: False)
    assert METAL_FLASH_DECODING not in paths.candidates()
    monkeypatch.setattr(paths, "metal_available", lambda: True)
    assert paths.candidates()[-1] == METAL_FLASH_DECODING
    seconds = dict.fromkeys(paths.candidates(), 2.0) | {METAL_FLASH_DECODING: 1.0}
    assert PathChoice(paths.candidates()).taken == [paths.candidates()[0]]
    assert PathChoice(paths.candidates(), dict.fromkeys(MEASURED, seconds)).taken == [METAL_FLASH_DECODING]
