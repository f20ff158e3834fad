"""The kernels for NVIDIA GPUs: right on such a GPU, and what they refuse anywhere."""

import mlx.core as mx
import pytest

from inference_service.engine.attention import DEQUANTIZE_FUSED, FLASH_DECODING, FLASH_PREFILL, AttentionBackend, paths
from inference_service.engine.attention.cuda import available, flash_decoding, flash_prefill
from inference_service.engine.attention.self_test import decode_error, over_caches, plain_attention, tolerance
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry
from inference_service.engine.quantization import FOUR_BITS, KVFormat, Quantization, Quantized, dequantize, quantize
from tests.inference_service.engine.geometries import OF_16_BITS, SHAPES, geometry

needs_cuda = pytest.mark.skipif(not available(), reason="the kernels are for NVIDIA GPUs")


@needs_cuda
@pytest.mark.parametrize("shape", [*SHAPES, *OF_16_BITS])
def test_the_kernels_are_right(shape: Geometry) -> None:
    assert decode_error(over_caches(paths.ONE_QUERY[FLASH_DECODING]), shape) < (
        1e-4 if shape.dtype == mx.float32 else 3e-2
    )


@needs_cuda
@pytest.mark.parametrize("shape", [*OF_16_BITS, geometry(dtype=mx.bfloat16, bits=8, window=3)])
def test_the_kernel_for_a_few_queries_is_right(shape: Geometry) -> None:
    seam = AttentionBackend()
    prefill = [report for report in seam.self_test(shape) if report.phase == "prefill"]
    assert [report.path for report in prefill] == [DEQUANTIZE_FUSED, FLASH_PREFILL]


@needs_cuda
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize(("n", "tokens"), [(2, 2), (3, 65), (33, 700), (50, 4111), (200, 1000), (511, 513)])
@pytest.mark.parametrize(("heads", "kv_heads", "rows"), [(8, 2, 1), (7, 1, 1), (4, 4, 2)])
def test_a_few_queries_of_any_number(
    dtype: mx.Dtype, n: int, tokens: int, heads: int, kv_heads: int, rows: int
) -> None:
    """Blocks of rows that are full or not, one chunk of tokens and many; causal, and with what it may see named."""
    q, (k, v), by = few_over(rows, heads, kv_heads, n, tokens, dtype)
    exact = plain_attention(q, *(dequantize(side, by.k).astype(mx.float32) for side in (k, v)), 0.125)
    named = mx.arange(tokens - n, tokens)[:, None] >= mx.arange(tokens)
    for mask in ("causal", named, mx.contiguous(mx.broadcast_to(named, (rows, 1, n, tokens)))):
        found = flash_prefill(q, k, v, KVCodec(by), 0.125, mask, None).astype(mx.float32)
        assert float((mx.abs(found - exact).max() / mx.abs(exact).max()).item()) < tolerance(dtype)


@needs_cuda
def test_scores_of_real_models_are_not_rounded() -> None:
    """Up to 50, where bfloat16 has steps of a quarter: what of them decides must come out as of float32."""
    q, (k, v), by = few_over(1, 4, 4, 20, 40, mx.bfloat16)
    exact = plain_attention(q * 12, *(dequantize(side, by.k).astype(mx.float32) for side in (k, v)), 0.125)
    found = flash_prefill(q * 12, k, v, KVCodec(by), 0.125, "causal", None).astype(mx.float32)
    assert float((mx.abs(found - exact).max() / mx.abs(exact).max()).item()) < 0.01


def few_over(
    rows: int, heads: int, kv_heads: int, n: int, tokens: int, dtype: mx.Dtype
) -> tuple[mx.array, list[Quantized], KVFormat]:
    """Queries [rows, heads, n, 64], packed K and V of so many tokens, and how they are quantized."""
    keys = iter(mx.random.split(mx.random.key(3), 3))
    q = mx.random.normal((rows, heads, n, 64), key=next(keys)).astype(dtype)
    kv = [mx.random.normal((rows, kv_heads, tokens, 64), key=next(keys)).astype(dtype) for _ in range(2)]
    return q, [quantize(side, FOUR_BITS.k) for side in kv], FOUR_BITS


@pytest.mark.parametrize(
    ("dtype", "k_dim", "bits", "words"),
    [
        (mx.float32, 64, 4, "float32 queries"),
        (mx.bfloat16, 72, 4, "widths 72"),
        (mx.bfloat16, 64, 3, "3 bits"),
        (mx.bfloat16, 512, 4, "does not fit"),
    ],
)
def test_what_the_kernel_for_a_few_queries_does_not_know(dtype: mx.Dtype, k_dim: int, bits: int, words: str) -> None:
    queries, side = mx.zeros((1, 2, 5, k_dim), dtype), mx.zeros((1, 2, 9, k_dim // 8 * 8), dtype)
    packed = Quantized(mx.zeros((1, 2, 9, k_dim // 8), mx.uint32), side[..., : k_dim // 8], side[..., : k_dim // 8])
    with pytest.raises(ValueError, match=words):
        flash_prefill(queries, packed, packed, KVCodec(KVFormat(bits, bits, 8)), 1.0, "causal", None)


@pytest.mark.parametrize(
    "changed", [{"bits": 3}, {"width": 520}, {"scales": mx.float16}], ids=["bits", "width", "scales"]
)
def test_flash_decoding_refuses_what_its_kernels_do_not_know(changed: dict[str, object]) -> None:
    bits, width = changed.get("bits", 4), changed.get("width", 64)
    assert isinstance(bits, int) and isinstance(width, int)
    side = quantize(mx.zeros((1, 1, 4, 64)), Quantization(4, 32))
    if "scales" in changed:
        side = side._replace(scales=side.scales.astype(mx.float16))
    with pytest.raises(ValueError, match="flash decoding"):
        flash_decoding(mx.zeros((1, 2, 1, width)), side, side, KVCodec(KVFormat(bits, bits, 32)), 1.0, None, None)
