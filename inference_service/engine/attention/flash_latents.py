"""Attention of a few queries over packed latents, as a kernel for NVIDIA GPUs from sm_80 on.

Latents are keys and values of all heads: a tile of them, dequantized once in shared memory, serves both products, on
tensor cores, whose 16 rows are the heads of one query or queries of some heads. Else as in `flash_prefill`: it rotates
queries where it loads them, and the kernel that joins the chunks rotates outputs back.
"""

from functools import lru_cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.attention.chunks import (
    RANGE,
    SIDES,
    TILES,
    block,
    joined,
    mask_inputs,
    readable,
    seen_tokens,
    template_fields,
)
from inference_service.engine.caches.traced import TokenRange
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import kernel
from inference_service.engine.quantization import KVFormat, Quantized, filled_up, width_of

_THREADS = 256
_ROWS, _TILE = 16, 32
"""Of a block: rows of queries, and tokens that it takes at once, as in flash_latents.cu."""
_BLOCKS: Final = 132
"""To aim at: one on each multiprocessor of a large GPU, which has registers for no more."""
_SHARED_BYTES = 48 << 10
"""Shared memory that every block may have."""

_ATTEND = """
  const int heads = queries_shape[1], n = queries_shape[2], row = blockIdx.z;
  const int first = blockIdx.y * {rows};
  {seen}
  const int tiles = (high - low + {tile} - 1) / {tile}, chunk = (tiles + gridDim.x - 1) / gridDim.x * {tile};
  const int start = min(low + int(blockIdx.x) * chunk, high), kv_head = 0;
  {sides}
  const Visible visible = {{{visible}}};
  const int64_t at = int64_t(row) * heads * n * gridDim.x + blockIdx.x;
  attend_latents<{type}, {k_bits}, {v_bits}, {group_size}, {k_dim}, {k_block}, {v_dim}, {v_block}, {tile}>(
      queries + row * queries_strides[0], queries_strides[1], queries_strides[2], queries_strides[3],
      rotary_queries + row * rotary_queries_strides[0],
      rotary_queries_strides[1], rotary_queries_strides[2], rotary_queries_strides[3],
      n, {scale!r}f * LOG2E,
      keys, values, visible, first, min(first + {rows}, heads * n), start, min(start + chunk, high), high,
      stats + at * 2, partial + at * {k_dim}, gridDim.x);
"""


def flash_latents(
    queries: mx.array,
    rotary_queries: mx.array,
    latents: Quantized,
    rotary: Quantized,
    codec: KVCodec,
    scale: float,
    mask: mx.array | TokenRange | str | None,
) -> mx.array:
    """As `latents` describes it, over latents and rotary keys whose rows are contiguous.

    Raises ValueError for types and shapes that the kernel does not know; what the compiler or the driver finds comes up
    as RuntimeError when the result is evaluated.
    """
    by = codec.format
    queries, rotary_queries = filled_up(queries, by.group_size), filled_up(rotary_queries, by.group_size)
    rows, heads, n, k_dim = queries.shape
    tokens, v_dim, dtype = latents.tokens, width_of(rotary, by.v), queries.dtype
    if dtype != latents.scales.dtype or dtype not in (mx.bfloat16, mx.float16):
        raise ValueError(f"flash attention of {dtype} queries over latents with {latents.scales.dtype} scales")
    _check(k_dim, v_dim, by)
    inputs = [queries, rotary_queries, *latents, *rotary, *mask_inputs(mask, (rows, 1, n, tokens))]
    blocks, tiles = -(-heads * n // _ROWS), -(-tokens // _TILE)
    tiles_of_chunk = -(-tiles // max(1, _BLOCKS // (rows * blocks)))
    chunks = -(-tiles // tiles_of_chunk)
    given, window = isinstance(mask, mx.array), mask.window if isinstance(mask, TokenRange) else None
    stats, partial = _attend_kernel(dtype, k_dim, v_dim, by, scale, isinstance(mask, str), given, window)(
        inputs=inputs,
        grid=(chunks * _THREADS, blocks, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, n, chunks, 2), (rows, heads, n, chunks, k_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, queries, scale, None, codec, codec.k_mean)


def _check(k_dim: int, v_dim: int, by: KVFormat) -> None:
    """Raise ValueError for shapes that the kernel does not know."""
    if not readable(k_dim, by.k) or not readable(v_dim, by.v) or k_dim % 32 or v_dim % 32 or k_dim > 1024:
        raise ValueError(f"flash attention over latents in {by} bits by {by.group_size}, widths {k_dim} and {v_dim}")
    if 2 * _TILE * (k_dim + 8 + v_dim + 8) + 8 * _ROWS * (_TILE + 4) > _SHARED_BYTES:
        raise ValueError(f"flash attention over latents of {k_dim} and {v_dim}: a tile does not fit into shared memory")


@lru_cache(maxsize=64)
def _attend_kernel(
    dtype: mx.Dtype, k_dim: int, v_dim: int, by: KVFormat, scale: float, causal: bool, given: bool, window: int | None
) -> Any:
    """Of queries that see what is before them, what a mask says that is given, or a range with this window."""
    at = "visible_at + row * visible_at_strides[0], visible_at_strides[2], visible_at_strides[3], false"
    source = _ATTEND.format(
        rows=_ROWS,
        tile=_TILE,
        v_block=block(v_dim, by),
        seen=seen_tokens(window),
        visible=at if given else f"nullptr, 0, 0, {'true' if causal else 'false'}",
        **template_fields(dtype, k_dim, v_dim, by, scale, "0"),
    )
    inputs = ["queries", "rotary_queries", *SIDES, *["visible_at"] * given, *(RANGE if window is not None else ())]
    files = [*TILES, "attention/flash_latents.cu"]
    return kernel(
        "flash_latents", inputs, ["stats", "partial"], source, files, max(k_dim, v_dim) if block(k_dim, by) else 0
    )
