"""Attention over the pool's blocks as kernels for NVIDIA GPUs: `flash_decoding` and `flash_prefill` with tables.

A block of threads takes a chunk of tokens that lies in one block of the pool, so that in it all is as it was in one
piece of memory; of many queries, a tile finds its tokens by the table.
"""

from functools import lru_cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.attention.chunks import FILES as PACKED
from inference_service.engine.attention.chunks import TILES, joined
from inference_service.engine.attention.flash_decoding import DECODE_BLOCKS, SHORTEST_CHUNK, split_of
from inference_service.engine.attention.flash_prefill import TILE, check, grid_of
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import kernel
from inference_service.engine.paged.kernels import PagedGroup, Tables
from inference_service.engine.quantization import filled_up

_THREADS: Final = 256

_DECODE = """
  const int kv_head = blockIdx.y / {tiles}, head = blockIdx.y * {heads}, row = blockIdx.z;
  const int parts = gridDim.x / tables_shape[1], chunk = {tokens} / parts;
  const int first = spans[row * spans_strides[0]], end = spans[row * spans_strides[0] + 1];
  const int from = first + blockIdx.x * chunk, start = max(from, {low}), stop = min(from + chunk, end);
  const int64_t at = (row * int64_t(gridDim.y) * {heads} + head) * gridDim.x + blockIdx.x;
  if (start >= stop) {{
    if (threadIdx.x < {heads}) {{
      stats[(at + threadIdx.x * gridDim.x) * 2] = LEAST;
      stats[(at + threadIdx.x * gridDim.x) * 2 + 1] = 0;
    }}
    return;
  }}
  {k_in}
  {v_in}
  const int64_t block = tables[row * tables_strides[0] + blockIdx.x / parts];
  const Side<{type}> keys = k_in.from(block, (start - first) % {tokens});
  const Side<{type}> values = v_in.from(block, (start - first) % {tokens});
  attend_chunk<{type}, {k_bits}, {v_bits}, {group_size}, {heads}, {k_dim}, {k_block}, {k_lanes}, {v_dim}, {v_lanes},
               {threads}, {tokens}>(
      queries + row * queries_strides[0] + head * queries_strides[1],
      queries_strides[1], queries_strides[3], {scale!r}f,
      keys, values, nullptr, 0, stop - start,
      stats + at * 2, gridDim.x * 2, partial + at * {v_dim}, int64_t(gridDim.x) * {v_dim});
"""


def flash_decoding(
    group: PagedGroup,
    layer: mx.array,
    queries: mx.array,
    tables: Tables,
    codec: KVCodec,
    scale: float,
    sinks: mx.array | None,
    after: mx.array,
) -> mx.array:
    """Attention of queries [rows, heads, 1, k_dim], each the last of its row's tokens; [rows, heads, 1, v_dim].

    `layer` int32 [1] counts within the group; `after` is what `write` gave; `sinks` [heads]. Raises ValueError for
    shapes that the kernels do not know; what the compiler or the driver finds comes up as RuntimeError when the result
    is evaluated.
    """
    queries = filled_up(queries, codec.format.group_size)
    rows, heads, n, _ = queries.shape
    if n != 1 or queries.dtype != group.dtype:
        raise ValueError(f"{n} queries of {queries.dtype} over blocks of {group.dtype}")
    attend, together = _decode_kernel(group, heads // group.kv_heads, float(scale))
    tiles, blocks = heads // together, tables.blocks.shape[1]
    parts = 1
    while rows * tiles * blocks * parts < DECODE_BLOCKS and not group.tokens % (2 * parts):
        if group.tokens // (2 * parts) < SHORTEST_CHUNK:
            break
        parts *= 2
    chunks = blocks * parts
    stats, partial = attend(
        inputs=[queries, tables.blocks, tables.spans, layer, after],
        grid=(chunks * _THREADS, tiles, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, n, chunks, 2), (rows, heads, n, chunks, group.v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, queries, scale, sinks, codec, codec.v_mean)


@lru_cache(maxsize=64)
def _decode_kernel(group: PagedGroup, heads: int, scale: float) -> tuple[Any, int]:
    """The kernel for so many query heads of a KV head, and how many of them a block of threads takes."""
    by_lanes = split_of(heads, group.k_dim, group.v_dim, group.format)
    low = f"end - {group.window}" if group.window else "0"
    source = _DECODE.format(
        tiles=heads // by_lanes.heads,
        threads=_THREADS,
        low=low,
        scale=scale,
        **by_lanes._asdict(),
        **group.fields(),
    )
    inputs = ["queries", "tables", "spans", "layer", "after"]
    files = [*PACKED, "paged/paged.cu", "attention/flash_decoding.cu"]
    return kernel("paged_decoding", inputs, ["stats", "partial"], source, files, group.rotated_width), by_lanes.heads


_ATTEND = """
  const int n = queries_shape[2], row = blockIdx.z;
  const int heads = queries_shape[1] / {kv_heads}, kv_head = blockIdx.y % {kv_heads};
  const int blocks = gridDim.y / {kv_heads}, rows = ((heads * n + blocks - 1) / blocks + 15) / 16 * 16;
  const int first_row = blockIdx.y / {kv_heads} * rows;
  const int first = spans[row * spans_strides[0]], end = spans[row * spans_strides[0] + 1], low = {low};
  const int tiles = (end - low + {tile} - 1) / {tile}, chunk = (tiles + gridDim.x - 1) / gridDim.x * {tile};
  const int start = min(low + int(blockIdx.x) * chunk, end);
  {k_in}
  {v_in}
  const int64_t* table = tables + row * tables_strides[0];
  const {k_paged} keys = {{k_in, table, first}};
  const {v_paged} values = {{v_in, table, first}};
  const Visible visible = {{nullptr, 0, 0, true, {window}}};
  const int64_t at = (int64_t(row) * queries_shape[1] + kv_head * heads) * n * gridDim.x + blockIdx.x;
  attend_rows<{type}, {k_bits}, {v_bits}, {group_size}, {k_dim}, {k_block}, {v_dim}, {tile}>(
      queries + row * queries_strides[0] + kv_head * heads * queries_strides[1],
      queries_strides[1], queries_strides[2], queries_strides[3], n, {scale!r}f * LOG2E,
      keys, values, visible, first_row, min(first_row + rows, heads * n), start, min(start + chunk, end), end,
      stats + at * 2, partial + at * {v_dim}, gridDim.x);
"""


def flash_prefill(
    group: PagedGroup,
    layer: mx.array,
    queries: mx.array,
    tables: Tables,
    tokens: int,
    codec: KVCodec,
    scale: float,
    sinks: mx.array | None,
    after: mx.array,
) -> mx.array:
    """Attention of queries [rows, heads, n, k_dim], the last n of each row's tokens; [rows, heads, n, v_dim].

    `tokens` is how many the longest row has. The rest as of `flash_decoding`; K, V and queries have 16 bits.
    """
    queries = filled_up(queries, codec.format.group_size)
    rows, heads, n, _ = queries.shape
    if queries.dtype != group.dtype or group.dtype not in (mx.bfloat16, mx.float16):
        raise ValueError(f"flash prefill of {queries.dtype} queries over blocks of {group.dtype}")
    check(group.k_dim, group.v_dim, group.format)
    seen = min(tokens, group.window + n - 1) if group.window else tokens
    blocks, chunks = grid_of(rows, group.kv_heads, heads, n, seen)
    stats, partial = _prefill_kernel(group, float(scale))(
        inputs=[queries, tables.blocks, tables.spans, layer, after],
        grid=(chunks * _THREADS, blocks, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, n, chunks, 2), (rows, heads, n, chunks, group.v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, queries, scale, sinks, codec, codec.v_mean)


@lru_cache(maxsize=64)
def _prefill_kernel(group: PagedGroup, scale: float) -> Any:
    low = f"max(first, end - n - {group.window} + 1)" if group.window else "0"
    source = _ATTEND.format(
        kv_heads=group.kv_heads, tile=TILE, low=low, window=group.window, scale=scale, **group.fields()
    )
    inputs = ["queries", "tables", "spans", "layer", "after"]
    files = [*TILES, "paged/paged.cu", "attention/flash_prefill.cu"]
    return kernel("paged_prefill", inputs, ["stats", "partial"], source, files, group.rotated_width)
