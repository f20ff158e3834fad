"""Attention of a few queries over packed K and V, as a kernel for NVIDIA GPUs from sm_80 on.

A next turn's text is a few dozen tokens behind thousands. MLX's fused kernel there, cuDNN, makes a plan for each pair
of numbers of queries and of tokens, which takes 45 to 60 ms of a turn of 50 tokens, as its layers do (H200, Llama 3.1
8B); scores spelled out in MLX's products take 1.2 to 1.8 ms a layer at 32K tokens. This one reads K and V packed and
once, dequantizes tile by tile in shared memory and multiplies on tensor cores: FlashAttention-2 (Dao, 2023) for the
tile, and chunks of tokens as in flash decoding. It rotates queries as flash decoding does.
"""

from functools import lru_cache
from typing import Any

import mlx.core as mx

from inference_service.engine.attention.chunks import SIDES, TILES, block, joined, readable, template_fields
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import kernel
from inference_service.engine.quantization import KVFormat, Quantized, filled_up, width_of

_THREADS = 256
_ROWS, TILE = 128, 32
"""Of a block: eight warps, each with at most 16 rows of queries, as in flash_prefill.cu; tokens that it takes at once.

Tiles of 64 tokens took 10 % longer, blocks of four warps 9 %, words that are not fetched ahead 15 % (H200, 32K tokens).
"""
_SHARED_BYTES = 48 << 10
"""Shared memory that every block may have."""
_PREFILL_BLOCKS = 132
"""Blocks to aim at: one on each multiprocessor of a large GPU, which has registers for no more. Twice as many took 9 %
longer."""

_ATTEND = """
  const int tokens = k_words_shape[2], n = queries_shape[2], kv_heads = k_words_shape[1], row = blockIdx.z;
  const int heads = queries_shape[1] / kv_heads, kv_head = blockIdx.y % kv_heads;
  const int blocks = gridDim.y / kv_heads, rows = ((heads * n + blocks - 1) / blocks + 15) / 16 * 16;
  const int first = blockIdx.y / kv_heads * rows;
  const int tiles = (tokens + {tile} - 1) / {tile}, chunk = (tiles + gridDim.x - 1) / gridDim.x * {tile};
  const int start = blockIdx.x * chunk;
  {sides}
  const Visible visible = {{{visible}}};
  const int64_t at = (int64_t(row) * queries_shape[1] + kv_head * heads) * n * gridDim.x + blockIdx.x;
  attend_rows<{type}, {k_bits}, {v_bits}, {group_size}, {k_dim}, {k_block}, {v_dim}, {tile}>(
      queries + row * queries_strides[0] + kv_head * heads * queries_strides[1],
      queries_strides[1], queries_strides[2], queries_strides[3], n, {scale!r}f * LOG2E,
      keys, values, visible, first, min(first + rows, heads * n), start, min(start + chunk, tokens), tokens,
      stats + at * 2, partial + at * {v_dim}, gridDim.x);
"""


def flash_prefill(
    queries: mx.array,
    keys: Quantized,
    values: Quantized,
    codec: KVCodec,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None,
) -> mx.array:
    """Attention of queries [rows, heads, n, k_dim] over K and V whose rows are contiguous; [rows, heads, n, v_dim].

    `mask` is "causal", None, or bool and broadcasts to [rows, 1, n, tokens]; `sinks` [heads]. Raises ValueError for
    types and shapes that the kernel does not know; what the compiler or the driver finds comes up as RuntimeError when
    the result is evaluated.
    """
    by = codec.format
    queries = filled_up(queries, by.group_size)
    rows, heads, n, k_dim = queries.shape
    kv_heads, tokens = keys.weights.shape[1:3]
    v_dim, dtype = width_of(values, by.v), queries.dtype
    if dtype != keys.scales.dtype or dtype not in (mx.bfloat16, mx.float16):
        raise ValueError(f"flash prefill of {dtype} queries over {keys.scales.dtype} scales")
    check(k_dim, v_dim, by)
    inputs = [queries, *keys, *values]
    if isinstance(mask, mx.array):
        inputs.append(mx.broadcast_to(mask, (rows, 1, n, tokens)))
    blocks, chunks = grid_of(rows, kv_heads, heads, n, tokens)
    mask_kind = "none" if mask is None else "causal" if isinstance(mask, str) else "array"
    stats, partial = _attend_kernel(dtype, k_dim, v_dim, by, scale, mask_kind)(
        inputs=inputs,
        grid=(chunks * _THREADS, blocks, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, n, chunks, 2), (rows, heads, n, chunks, v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, queries, scale, sinks, codec, codec.v_mean)


def grid_of(rows: int, kv_heads: int, heads: int, n: int, tokens: int) -> tuple[int, int]:
    """Blocks of threads for n queries of a row, and chunks of the tokens that they see."""
    blocks, tiles = kv_heads * -(-(heads // kv_heads * n) // _ROWS), -(-tokens // TILE)
    tiles_of_chunk = -(-tiles // max(1, _PREFILL_BLOCKS // (rows * blocks)))
    return blocks, -(-tiles // tiles_of_chunk)


def check(k_dim: int, v_dim: int, by: KVFormat) -> None:
    """Raise ValueError for shapes that the kernel does not know."""
    if not readable(k_dim, by.k) or not readable(v_dim, by.v) or k_dim % 16 or v_dim % 16:
        raise ValueError(f"flash prefill over {by} bits by {by.group_size}, widths {k_dim} and {v_dim}")
    if 2 * TILE * (k_dim + 8 + v_dim + 8) > _SHARED_BYTES:
        raise ValueError(f"flash prefill over widths {k_dim} and {v_dim}: a tile does not fit into shared memory")


@lru_cache(maxsize=256)
def _attend_kernel(dtype: mx.Dtype, k_dim: int, v_dim: int, by: KVFormat, scale: float, mask_kind: str) -> Any:
    given = mask_kind == "array"
    at = "visible_at + row * visible_at_strides[0], visible_at_strides[2], visible_at_strides[3], false"
    source = _ATTEND.format(
        tile=TILE,
        visible=at if given else f"nullptr, 0, 0, {'true' if mask_kind == 'causal' else 'false'}",
        **template_fields(dtype, k_dim, v_dim, by, scale, "0"),
    )
    inputs = ["queries", *SIDES, *(["visible_at"] if given else [])]
    files = [*TILES, "attention/flash_prefill.cu"]
    return kernel("flash_prefill", inputs, ["stats", "partial"], source, files, k_dim if block(k_dim, by) else 0)
