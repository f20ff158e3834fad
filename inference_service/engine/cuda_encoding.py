"""K and V centred, rotated and packed by one kernel for NVIDIA GPUs."""

import logging
from functools import lru_cache
from typing import Any, Final, NamedTuple

import mlx.core as mx

from inference_service.engine.cuda_kernel import CUDA_TYPES, available, kernel
from inference_service.engine.quantization import (
    ROTATED,
    KVFormat,
    Quantization,
    Quantized,
    dequantize,
    filled_up,
    last_axes,
)
from inference_service.engine.rotation import block, rotated

log = logging.getLogger(__name__)

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


class _Encoder(NamedTuple):
    kernel: Any
    axes: list[int]


def encoded(
    keys: mx.array, values: mx.array, means: tuple[mx.array, mx.array] | None, by: KVFormat
) -> tuple[Quantized, Quantized] | None:
    """Return K [rows, kv_heads, n, k_dim] and V packed, with means [kv_heads, 1, padded width]; None if the kernel does
    not know the types or heads, or does not work here.
    """
    k_mean, v_mean = means or (None, None)
    encoder = _encoder_of(keys, values, k_mean, v_mean, by)
    return None if encoder is None else _encoded(encoder, keys, values, k_mean, v_mean)


def _encoder_of(
    keys: mx.array, values: mx.array, k_mean: mx.array | None, v_mean: mx.array | None, by: KVFormat
) -> _Encoder | None:
    if not available() or keys.shape[:3] != values.shape[:3]:
        return None
    types = tuple(None if x is None else x.dtype for x in (keys, values, k_mean, v_mean))
    return _proven(types, keys.shape[3], values.shape[3], by)


def _encoded(
    encoder: _Encoder, keys: mx.array, values: mx.array, k_mean: mx.array | None, v_mean: mx.array | None
) -> tuple[Quantized, Quantized]:
    rows, heads, n, _ = keys.shape
    dtype = keys.dtype
    out = encoder.kernel(
        inputs=_inputs(keys, values, k_mean, v_mean),
        output_shapes=[(rows, heads, n, axis) for axis in encoder.axes],
        output_dtypes=[mx.uint32, dtype, dtype, mx.uint32, dtype, dtype],
        **_threads(keys),
    )
    return Quantized(*out[:3]), Quantized(*out[3:])


def _inputs(keys: mx.array, values: mx.array, k_mean: mx.array | None, v_mean: mx.array | None) -> list[mx.array]:
    return [keys, values] if k_mean is None or v_mean is None else [keys, values, k_mean, v_mean]


def _threads(keys: mx.array) -> dict[str, tuple[int, int, int]]:
    rows, heads, n, _ = keys.shape
    return {"grid": (-(-rows * heads * n // _WARPS) * _WARPS * 32, 2, 1), "threadgroup": (_WARPS * 32, 1, 1)}


@lru_cache(maxsize=64)
def _proven(types: tuple[mx.Dtype | None, ...], k_dim: int, v_dim: int, by: KVFormat) -> _Encoder | None:
    """Return the kernel if it compiles here and errs by rounding alone."""
    dtype, centred = types[0], types[2] is not None
    if dtype not in CUDA_TYPES or set(types) - {dtype, None}:
        return None
    random = iter(mx.random.split(mx.random.key(11), 4))
    sides = [mx.random.normal((2, 2, 3, width), key=next(random)).astype(dtype) for width in (k_dim, v_dim)]
    means = [filled_up(mx.random.normal((2, 1, x.shape[3]), key=next(random)), by.group_size) for x in sides]
    k_mean, v_mean = (mean.astype(dtype) for mean in means) if centred else (None, None)
    encoder = _encoder(dtype, k_dim, v_dim, centred, by)
    try:
        packed = _encoded(encoder, sides[0], sides[1], k_mean, v_mean)
        for x, mean, found, format in zip(sides, (k_mean, v_mean), packed, (by.k, by.v), strict=True):
            wanted = filled_up(x, by.group_size).astype(mx.float32) - (0 if mean is None else mean.astype(mx.float32))
            whole = Quantized(found.weights, *(part.astype(mx.float32) for part in found[1:]))
            error = (
                mx.square(dequantize(whole, format) - (rotated(wanted) if by.scheme == ROTATED else wanted))
                .mean()
                .sqrt()
            )
            if not (error <= mx.abs(whole.scales).mean()).item():
                raise RuntimeError(f"what the kernel packs is {error.item():.2g} off")
    except RuntimeError as failure:
        log.warning("K and V are packed by MLX's operations: %s", failure)
        return None
    return encoder


def _encoder(dtype: mx.Dtype, k_dim: int, v_dim: int, centred: bool, by: KVFormat) -> _Encoder:
    k_width, v_width = (width + -width % by.group_size for width in (k_dim, v_dim))
    axes = [*last_axes(k_width, by.k).values(), *last_axes(v_width, by.v).values()]
    inputs = ["keys", "values", *["k_mean", "v_mean"] * centred]
    rows = [f"{array} + int64_t(at) * {axis}" for array, axis in zip(_OUTPUTS, axes, strict=True)]
    k = _side("keys", "k_mean" if centred else None, k_width, by.k, block(k_width, by), dtype, rows[:3])
    v = _side("values", "v_mean" if centred else None, v_width, by.v, block(v_width, by), dtype, rows[3:])
    source, files = _ENCODE.format(warps=_WARPS, k=k, v=v), ["rotation.cu", "encoding.cu"]
    return _Encoder(kernel("encoding", inputs, _OUTPUTS, source, files, max(k_width, v_width)), axes)


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
