"""K and V centred, rotated and packed by one kernel for NVIDIA GPUs."""

from functools import lru_cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.cuda_kernel import CUDA_TYPES, kernel
from inference_service.engine.device import on_cuda
from inference_service.engine.quantization import (
    KVFormat,
    Quantization,
    Quantized,
    last_axes,
)
from inference_service.engine.rotation import block

_WARPS = 4

_ENCODE = """
  const int heads = keys_shape[1], n = keys_shape[2], at = blockIdx.x * {warps} + threadIdx.x / 32;
  if (at >= keys_shape[0] * heads * n) return;
  const int token = at % n, head = at / n % heads, row = at / n / heads;
  if (blockIdx.y == 0) {{
    {k}
  }} else {{
    {v}
  }}
"""
_SIDE = """
    encode_row<{type}, {bits}, {group_size}, {width}, {block}>(
        {x} + row * {x}_strides[0] + head * {x}_strides[1] + token * {x}_strides[2], {x}_strides[3], {x}_shape[3],
        {mean}, {outputs});
"""
_OUTPUTS: Final = [f"{side}_{part}" for side in ("keys", "values") for part in ("words", "scales", "biases")]


def encoded(
    keys: mx.array, values: mx.array, means: tuple[mx.array, mx.array] | None, by: KVFormat
) -> tuple[Quantized, Quantized] | None:
    """Return K [rows, kv_heads, n, k_dim] and V packed, with means [kv_heads, 1, padded width]; None if the kernel does
    not know the types or heads.
    """
    inputs, dtype = [keys, values, *(means or ())], keys.dtype
    if not on_cuda() or keys.shape[:3] != values.shape[:3]:
        return None
    if dtype not in CUDA_TYPES or any(x.dtype != dtype for x in inputs):
        return None
    rows, heads, n, _ = keys.shape
    encoder, axes = _encoder(dtype, keys.shape[3], values.shape[3], means is not None, by)
    out = encoder(
        inputs=inputs,
        grid=(-(-rows * heads * n // _WARPS) * _WARPS * 32, 2, 1),
        threadgroup=(_WARPS * 32, 1, 1),
        output_shapes=[(rows, heads, n, axis) for axis in axes],
        output_dtypes=[mx.uint32, dtype, dtype, mx.uint32, dtype, dtype],
    )
    return Quantized(*out[:3]), Quantized(*out[3:])


@lru_cache(maxsize=64)
def _encoder(dtype: mx.Dtype, k_dim: int, v_dim: int, centred: bool, by: KVFormat) -> tuple[Any, list[int]]:
    """Return the kernel, and the last axes of its outputs."""
    k_width, v_width = (width + -width % by.group_size for width in (k_dim, v_dim))
    axes = [*last_axes(k_width, by.k).values(), *last_axes(v_width, by.v).values()]
    inputs = ["keys", "values", *["k_mean", "v_mean"] * centred]
    rows = [f"{array} + int64_t(at) * {axis}" for array, axis in zip(_OUTPUTS, axes, strict=True)]
    k = _side("keys", "k_mean" if centred else None, k_width, by.k, block(k_width, by), dtype, rows[:3])
    v = _side("values", "v_mean" if centred else None, v_width, by.v, block(v_width, by), dtype, rows[3:])
    source, files = _ENCODE.format(warps=_WARPS, k=k, v=v), ["rotation.cu", "encoding.cu"]
    return kernel("encoding", inputs, _OUTPUTS, source, files, max(k_width, v_width)), axes


def _side(
    x: str, mean: str | None, width: int, by: Quantization, block: int, dtype: mx.Dtype, outputs: list[str]
) -> str:
    return _SIDE.format(
        x=x,
        type=CUDA_TYPES[dtype],
        width=width,
        block=block,
        mean=f"{mean} + head * {mean}_strides[0], {mean}_strides[2]" if mean else "nullptr, 0",
        outputs=", ".join(outputs),
        **by._asdict(),
    )
