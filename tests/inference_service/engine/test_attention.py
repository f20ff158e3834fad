"""The seam's self-test: what it proves, and what it must find."""

import mlx.core as mx
import pytest

from agentmem.errors import FailedPrecondition
from inference_service.engine import attention
from inference_service.engine.attention import DEQUANTIZE_FUSED, QUANTIZED_MATMUL, AttentionSeam
from inference_service.engine.geometry import Geometry, LayerGroup


def geometry(
    kv_heads: int = 2, v_dim: int = 64, dtype: mx.Dtype = mx.float32, bits: int = 4, window: int = 0
) -> Geometry:
    full = LayerGroup((0, 2), kv_heads, 64, v_dim)
    return Geometry(4, dtype, bits, 32, full, LayerGroup((1,), kv_heads, 64, v_dim, window) if window else None)


@pytest.mark.parametrize(
    "shape",
    [
        geometry(),
        geometry(kv_heads=1),
        geometry(kv_heads=4),
        geometry(v_dim=32),
        geometry(bits=8),
        geometry(window=40),
        geometry(window=3),
    ],
)
def test_both_phases_agree_with_plain_attention(shape: Geometry) -> None:
    prefill, decode = AttentionSeam().self_test(shape)
    assert (prefill.phase, prefill.path) == ("prefill", DEQUANTIZE_FUSED)
    assert (decode.phase, decode.path, decode.note) == ("decode", QUANTIZED_MATMUL, "")
    assert max(prefill.relative_error, decode.relative_error) < 1e-4


def test_a_wrong_prefill_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(
        mx.fast, "scaled_dot_product_attention", lambda q, k, v, scale, mask, sinks: fused(q, k, v, scale=scale)
    )
    with pytest.raises(FailedPrecondition, match="prefill"):
        AttentionSeam().self_test(geometry())


def test_a_wrong_or_missing_decode_kernel_is_replaced_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> mx.array:
        raise RuntimeError("no kernel for strided K")

    def wrong(queries: mx.array, *_: object) -> mx.array:
        return mx.zeros((*queries.shape[:3], 64))

    for fault, words in ((missing, "no kernel for strided K"), (wrong, "differs")):
        monkeypatch.setattr(attention, "_one_query", fault)
        seam = AttentionSeam()
        _, decode = seam.self_test(geometry())
        assert decode.path == seam.decode_path == DEQUANTIZE_FUSED
        assert words in decode.note
        assert decode.relative_error < 1e-4
