"""Products of a few rows with quantized weights, on NVIDIA GPUs. Warps divide K: 14336 to 4096 takes 40 µs on an H100,
by MLX's 300.
"""

from functools import lru_cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine import dequantizing
from inference_service.engine.cuda_kernel import CUDA_TYPES, kernel

_THREADS: Final = 256
_TILE: Final = 16
_WIDE: Final = 8192
_MOST_EIGHTS: Final = 4
_FILES: Final = ("attention/quantized.cu", "attention/tiles.cu", "skinny.cu")

_MULTIPLY = """
  multiply_few<{type}, {bits}, {group_size}, {eights}, {tiles}>(
      x, x_shape[0] * x_shape[1], words, scales, biases, x_shape[2], words_shape[0], out);
"""


def known(inputs: int, mode: str, bits: int, group_size: int, dtype: mx.Dtype) -> bool:
    of_lane = 128 // bits
    return dequantizing.known(mode, bits, group_size, dtype) and not inputs % of_lane and not group_size % of_lane


def multiply(x: mx.array, words: mx.array, scales: mx.array, biases: mx.array, bits: int, group_size: int) -> mx.array:
    """Multiply x [n, tokens, K] by weights uint32 [N, K * bits / 32]: [n, tokens, N]. Raises ValueError; the compiler's
    errors are RuntimeErrors at evaluation.
    """
    *shape, inputs = x.shape
    if not known(inputs, "affine", bits, group_size, x.dtype) or scales.dtype != x.dtype:
        raise ValueError(f"a product of {x.dtype} rows of {inputs} with {scales.dtype} weights, {bits} by {group_size}")
    rows, outputs = shape[0] * shape[1], words.shape[0]
    eights = next(n for n in (1, 2, _MOST_EIGHTS) if 8 * n >= rows or n == _MOST_EIGHTS)
    tiles = 1 if eights < _MOST_EIGHTS and outputs < _WIDE else 2  # each block reads its rows
    [out] = _kernel(x.dtype, bits, group_size, eights, tiles)(
        inputs=[x, words, scales, biases],
        grid=(-(-outputs // (_TILE * tiles)) * _THREADS, -(-rows // (8 * eights)), 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(*shape, outputs)],
        output_dtypes=[x.dtype],
    )
    return out  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _kernel(dtype: mx.Dtype, bits: int, group_size: int, eights: int, tiles: int) -> Any:
    fields = {"type": CUDA_TYPES[dtype], "bits": bits, "group_size": group_size, "eights": eights, "tiles": tiles}
    source = _MULTIPLY.format(**fields)
    return kernel("skinny", ["x", "words", "scales", "biases"], ["out"], source, _FILES, contiguous=True)
