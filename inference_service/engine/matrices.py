"""Rows times the matrices of KV heads, as a kernel for NVIDIA GPUs: MLX's product takes the processor longer."""

from functools import lru_cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.cuda_kernel import CUDA_TYPES, kernel

FILES: Final = ("attention/quantized.cu", "attention/tiles.cu", "matrices.cu")
"""Device code that products of rows within kernels need."""
_WARPS: Final = 8
_WIDTH_OF_ONE_TILE: Final = 256
"""A thread block multiplies 16 rows of this width, or as many times 16 narrower ones."""

_SOURCE = """
  const int kv_heads = matrices_shape[0], kv_head = blockIdx.x % kv_heads, group = rows_shape[1] / kv_heads;
  const int n = rows_shape[2], begin = blockIdx.x / kv_heads * {count}, end = rows_shape[0] * group * n;
  __shared__ TimesMatrix<{type}, {width}, {warps}, {tiles}> with;
  const {type}* matrix = matrices + kv_head * {width} * {width};
  auto at = [&](int i, int64_t row_step, int64_t head_step, int64_t token_step) {{
    int own = begin + i, head = kv_head * group + own / n % group;
    return own / n / group * row_step + head * head_step + own % n * token_step;
  }};
  with.fetch(matrix);
  with.fill([&](int i) {{
    return begin + i < end ? rows + at(i, rows_strides[0], rows_strides[1], rows_strides[2]) : nullptr;
  }}, rows_strides[3], {width});
  with.multiply(matrix, [&](int i, int column, float x, float y) {{
    if (begin + i >= end) return;
    int64_t to = at(i, int64_t(rows_shape[1]) * n, n, 1) * {width} + column;
    *reinterpret_cast<uint32_t*>(products + to) = pair<{type}>(x, y);
  }});
"""


def tiles(width: int, rows: int) -> int:
    """Return how many times 16 rows a thread block multiplies."""
    return max(1, _WIDTH_OF_ONE_TILE // width) if rows > 16 else 1


def times_matrices(rows: mx.array, matrices: mx.array) -> mx.array:
    """Return rows [n, heads, tokens, width] times the matrix [kv_heads, width, width] of each one's KV head; 16
    bits.
    """
    count, heads, n, width = rows.shape
    each = count * heads // len(matrices) * n
    per_block = tiles(width, each)
    [found] = _kernel(rows.dtype, width, per_block)(
        inputs=[rows, matrices],
        grid=(len(matrices) * -(-each // (16 * per_block)) * _WARPS * 32, 1, 1),
        threadgroup=(_WARPS * 32, 1, 1),
        output_shapes=[rows.shape],
        output_dtypes=[rows.dtype],
    )
    return found  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _kernel(dtype: mx.Dtype, width: int, tiles: int) -> Any:
    source = _SOURCE.format(type=CUDA_TYPES[dtype], width=width, tiles=tiles, count=16 * tiles, warps=_WARPS)
    return kernel("times_matrices", ["rows", "matrices"], ["products"], source, FILES)
