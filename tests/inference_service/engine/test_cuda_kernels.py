"""The kernels for NVIDIA GPUs over packed K and V: right on such a GPU, and their device code wherever g++ is."""

from dataclasses import replace

import mlx.core as mx
import pytest
from inference_service.engine.attention.flash_decoding import flash_decoding
from inference_service.engine.attention.flash_prefill import flash_prefill

from agentmem.errors import FailedPrecondition
from agentmem.kv.bits import BITS
from inference_service.engine.attention import DEQUANTIZE_FUSED, FLASH_PREFILL, AttentionBackend
from inference_service.engine.attention.chunks import joined
from inference_service.engine.attention.self_test import (
    decode_error,
    over_caches,
    plain_attention,
    prefill_error,
    tolerance,
)
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import available
from inference_service.engine.geometry import Geometry
from inference_service.engine.quantization import PLAIN, KVFormat, Quantization, Quantized, dequantize, quantize
from tests.inference_service.engine.cuda_on_cpu import CudaOnCPU
from tests.inference_service.engine.geometries import OF_16_BITS, SHAPES, geometry

pytestmark = pytest.mark.sampled(3)

PAIRS = list(zip(BITS, (*BITS[2:], *BITS[:2]), strict=True))
"""All bits of K and all of V."""

needs_cuda = pytest.mark.skipif(not available(), reason="as many elements as real models have take a GPU")
on_gpus = [pytest.param(shape, marks=needs_cuda) for shape in OF_16_BITS]
NARROW = [
    geometry(heads=2, k_dim=128, v_dim=128, dtype=mx.bfloat16, group=64),
    geometry(heads=2, k_dim=192, v_dim=128, dtype=mx.bfloat16, group=64),
    geometry(heads=1, kv_heads=1, k_dim=256, v_dim=256, dtype=mx.float16, group=64),
    geometry(heads=7, kv_heads=1, dtype=mx.float16, group=64),
    geometry(k_dim=96, v_dim=96, dtype=mx.bfloat16, window=40),
]


def with_bits(made: Geometry, k: int, v: int, scheme: str | None = None) -> Geometry:
    return replace(made, format=replace(made.format, k_bits=k, v_bits=v, scheme=scheme or made.format.scheme))


@pytest.mark.slow("shape10", "shape2", "shape4", "shape7", "shape8", "shape0", "shape11", "shape9")
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW, *on_gpus])
def test_one_query_is_right(shape: Geometry, kernels: None) -> None:
    assert decode_error(over_caches(flash_decoding), shape) < (1e-4 if shape.dtype == mx.float32 else 3e-2)


@pytest.mark.slow("shape1", "shape4")
@pytest.mark.parametrize("shape", [*NARROW, *on_gpus])
def test_a_few_queries_are_right(shape: Geometry, kernels: None) -> None:
    assert prefill_error(over_caches(flash_prefill), shape) < 3e-2


@pytest.mark.slow
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_bits_of_k_and_v_apart_are_right(k: int, v: int, kernels: None) -> None:
    for widths in ((64, 64), (96, 32)):
        shape = with_bits(geometry(k_dim=widths[0], v_dim=widths[1]), k, v)
        assert decode_error(over_caches(flash_decoding), shape) < 1e-4
    shape = with_bits(geometry(v_dim=128, dtype=mx.float16), k, v)
    assert prefill_error(over_caches(flash_prefill), shape) < 5e-3


@pytest.mark.slow
def test_the_scheme_that_does_not_rotate_is_right(kernels: None) -> None:
    assert decode_error(over_caches(flash_decoding), with_bits(geometry(), 5, 4, PLAIN)) < 1e-4
    assert prefill_error(over_caches(flash_prefill), with_bits(geometry(dtype=mx.float16), 5, 4, PLAIN)) < 5e-3


@needs_cuda
@pytest.mark.parametrize("shape", [*OF_16_BITS, geometry(dtype=mx.bfloat16, bits=8, window=3)])
def test_the_kernel_for_a_few_queries_is_taken(shape: Geometry) -> None:
    prefill = [report for report in AttentionBackend().self_test(shape) if report.phase == "prefill"]
    assert [report.path for report in prefill] == [DEQUANTIZE_FUSED, FLASH_PREFILL]


@pytest.mark.slow(
    "8-2-1-33-300-dtype1", "4-4-2-33-300-dtype0", "7-1-1-33-300-dtype1", "8-2-1-2-2-dtype0", "8-2-1-2-2-dtype1"
)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    ("n", "tokens"),
    [
        (2, 2),
        (3, 65),
        (33, 300),
        *(pytest.param(*of, marks=needs_cuda) for of in ((50, 4111), (200, 1000), (511, 513))),
    ],
)
@pytest.mark.parametrize(("heads", "kv_heads", "rows"), [(8, 2, 1), (7, 1, 1), (4, 4, 2)])
def test_a_few_queries_of_any_number(
    dtype: mx.Dtype, n: int, tokens: int, heads: int, kv_heads: int, rows: int, kernels: None
) -> None:
    """Blocks of rows that are full or not, one chunk of tokens and many; causal, and with what it may see named."""
    q, (k, v), by = few_over(rows, heads, kv_heads, n, tokens, dtype)
    exact = plain_attention(q, *(unpacked(side, by.k) for side in (k, v)), 0.125)
    named = mx.arange(tokens - n, tokens)[:, None] >= mx.arange(tokens)
    for mask in ("causal", named, mx.contiguous(mx.broadcast_to(named, (rows, 1, n, tokens)))):
        found = flash_prefill(q, k, v, KVCodec(by), 0.125, mask, None).astype(mx.float32)
        assert float((mx.abs(found - exact).max() / mx.abs(exact).max()).item()) < tolerance(dtype)


def test_scores_of_real_models_are_not_rounded(kernels: None) -> None:
    """Up to 50, where bfloat16 has steps of a quarter: what of them decides must come out as of float32."""
    q, (k, v), by = few_over(1, 4, 4, 20, 40, mx.bfloat16)
    exact = plain_attention(q * 12, *(unpacked(side, by.k) for side in (k, v)), 0.125)
    found = flash_prefill(q * 12, k, v, KVCodec(by), 0.125, "causal", None).astype(mx.float32)
    assert float((mx.abs(found - exact).max() / mx.abs(exact).max()).item()) < 0.01


@pytest.mark.slow
def test_widths_that_do_not_fill_groups(kernels: None) -> None:
    """Queries of 80 over K of 96: outputs are as wide as packed V, and what fills it up is cut off later."""
    random = iter(mx.random.split(mx.random.key(4), 5))
    q, k, v = (mx.random.normal((2, 4, tokens, 80), key=next(random)) for tokens in (1, 70, 70))
    means = tuple(mx.random.normal((4, 80), key=next(random)) for _ in "kv")
    codec = KVCodec(KVFormat(5, 3, 32), (means[0], means[1]))
    found = flash_decoding(q, *codec.encode(k, v), codec, 0.1, None, None)
    k, v = codec.dequantize(*codec.encode(k, v), with_means=True)
    exact = codec.outputs(plain_attention(codec.queries(q), k, v, 0.1), with_means=True)
    assert found.shape == (2, 4, 1, 96)
    assert mx.allclose(found, exact, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["with_sign", "transform_row", "product"])
def test_what_is_left_out_of_a_kernel_shows(
    left_out: str, kernels: None, cuda_on_cpu: CudaOnCPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    if available():
        pytest.skip("of kernels as g++ compiles them")
    without = {
        "with_sign": ("float with_sign(float x, int element) {", "return x;"),
        "transform_row": ("void transform_row(float (&x)[WIDTH / 32]) {", "return;"),
        "product": ("product(const T* query, int64_t query_step, const T* vector, int64_t vector_step) {", "return 0;"),
    }
    begin, end = without[left_out]
    changes = []

    def changed(*, header: str, **others: object) -> object:
        changes.append(begin in header)
        return cuda_on_cpu(header=header.replace(begin, begin + end), **others)  # type: ignore[arg-type]

    monkeypatch.setattr(mx.fast, "cuda_kernel", changed)
    with pytest.raises(FailedPrecondition, match="differs"):
        decode_error(over_caches(flash_decoding), geometry())
    assert any(changes)


def few_over(
    rows: int, heads: int, kv_heads: int, n: int, tokens: int, dtype: mx.Dtype
) -> tuple[mx.array, list[Quantized], KVFormat]:
    """Queries [rows, heads, n, 64], packed K and V of so many tokens, and how they are quantized."""
    by = KVFormat(scheme=PLAIN)
    keys = iter(mx.random.split(mx.random.key(3), 3))
    q = mx.random.normal((rows, heads, n, 64), key=next(keys)).astype(dtype)
    kv = [mx.random.normal((rows, kv_heads, tokens, 64), key=next(keys)).astype(dtype) for _ in range(2)]
    return q, [quantize(side, by.k) for side in kv], by


def unpacked(side: Quantized, by: Quantization) -> mx.array:
    """Values rounded once to the type of the scales, as the kernel does it, in float32."""
    dtype = side.scales.dtype
    whole = side._replace(scales=side.scales.astype(mx.float32), biases=side.biases.astype(mx.float32))
    return dequantize(whole, by).astype(dtype).astype(mx.float32)


@pytest.mark.parametrize(
    ("dtype", "k_dim", "bits", "words"),
    [
        (mx.float32, 64, 4, "float32 queries"),
        (mx.bfloat16, 72, 4, "widths 72"),
        (mx.bfloat16, 64, 2, "2 bits"),
        (mx.bfloat16, 512, 4, "does not fit"),
    ],
)
def test_what_the_kernel_for_a_few_queries_does_not_know(dtype: mx.Dtype, k_dim: int, bits: int, words: str) -> None:
    queries, side = mx.zeros((1, 2, 5, k_dim), dtype), mx.zeros((1, 2, 9, k_dim // 8 * 8), dtype)
    packed = Quantized(mx.zeros((1, 2, 9, k_dim // 8), mx.uint32), side[..., : k_dim // 8], side[..., : k_dim // 8])
    with pytest.raises(ValueError, match=words):
        flash_prefill(queries, packed, packed, KVCodec(KVFormat(bits, bits, 8)), 1.0, "causal", None)


@pytest.mark.parametrize(
    "changed", [{"bits": 2}, {"width": 520}, {"scales": mx.float16}], ids=["bits", "width", "scales"]
)
def test_flash_decoding_refuses_what_its_kernels_do_not_know(changed: dict[str, object]) -> None:
    bits, width = changed.get("bits", 4), changed.get("width", 64)
    assert isinstance(bits, int) and isinstance(width, int)
    side = quantize(mx.zeros((1, 1, 4, 64)), Quantization(4, 32))
    if "scales" in changed:
        side = side._replace(scales=side.scales.astype(mx.float16))
    with pytest.raises(ValueError, match="flash decoding"):
        flash_decoding(mx.zeros((1, 2, 1, width)), side, side, KVCodec(KVFormat(bits, bits, 32)), 1.0, None, None)


def test_means_of_another_type_are_refused() -> None:
    codec = KVCodec(means=(mx.zeros((1, 64)), mx.zeros((1, 64))))
    stats, partial = mx.zeros((1, 1, 1, 3, 2)), mx.zeros((1, 1, 1, 3, 64))
    with pytest.raises(ValueError, match="means of another type"):
        joined(stats, partial, mx.zeros((1, 1, 1, 64), mx.float16), 1.0, None, codec, codec.v_mean)
