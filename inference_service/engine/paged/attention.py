"""Attention over the pool's blocks, found by tables, as kernels for NVIDIA GPUs.

A thread block of `flash_decoding` takes tokens of one pool block; for many queries each tile finds its tokens.
"""

from functools import lru_cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.attention.chunks import FILES as PACKED
from inference_service.engine.attention.chunks import TILES, joined, parts, readable, split
from inference_service.engine.cuda_kernel import kernel
from inference_service.engine.matrices import times_matrices
from inference_service.engine.paged import kernels
from inference_service.engine.paged.kernels import LayerBlocks, PagedGroup
from inference_service.engine.paged.shares import Run, shares
from inference_service.engine.quantization import filled_up

_THREADS: Final = 256
_FLOATS: Final = 64
"""Registers of a lane for queries, then outputs."""
_BLOCKS: Final = 384
"""To aim at: three per multiprocessor of a large GPU."""
_SHORTEST: Final = 64

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
    of: LayerBlocks, queries: mx.array, scale: float, sinks: mx.array | None, packed_queries: mx.array | None = None
) -> mx.array:
    """Attend with queries [rows, heads, 1, k_dim], each the last of its row's tokens: [rows, heads, 1, v_dim].

    `packed_queries` are in the packed basis. Raises ValueError for unsupported shapes; the compiler's errors are
    RuntimeErrors at evaluation.
    """
    group, codec, tables = of.group, of.codec, of.tables
    queries = filled_up(queries, codec.format.group_size)
    rows, heads, n, _ = queries.shape
    if n != 1 or queries.dtype != group.dtype:
        raise ValueError(f"{n} queries of {queries.dtype} over blocks of {group.dtype}")
    packed = codec.queries(queries) if packed_queries is None else packed_queries
    attend, together = _decode_kernel(group, heads // group.kv_heads, float(scale))
    tiles, blocks = heads // together, tables.blocks.shape[1]
    chunks = blocks * parts(rows * tiles * blocks, group.tokens, _SHORTEST, _BLOCKS)
    stats, partial = attend(
        inputs=[packed, tables.blocks, tables.spans, of.layer, of.written],
        grid=(chunks * _THREADS, tiles, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, n, chunks, 2), (rows, heads, n, chunks, group.v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, queries, scale, sinks, codec, codec.output_mean)


@lru_cache(maxsize=64)
def _decode_kernel(group: PagedGroup, heads: int, scale: float) -> tuple[Any, int]:
    """Return the kernel, and query heads of a thread block."""
    by_lanes, share = split(heads, group.k_dim, group.v_dim, group.format, _FLOATS)
    if share > _FLOATS or group.v_dim > 1024:
        raise ValueError(f"flash decoding over widths {group.k_dim} and {group.v_dim}")
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


_TILE: Final = 32
"""Tokens, as in flash_prefill.cu."""
_PREFILL_BLOCKS: Final = 132
_LONGEST: Final = 4096
"""Most tokens of a chunk: a long row must not delay a pass."""
_SHARED_BYTES: Final = 48 << 10

_ATTEND = """
  const int* share = shares + blockIdx.y / {kv_heads} * 5;
  const int row = share[0], query = share[1], n = share[2], first_row = share[3], end_row = share[4];
  if (first_row == end_row) return;
  const int heads = queries_shape[1] / {kv_heads}, head = blockIdx.y % {kv_heads} * heads, kv_head = head / heads;
  const int first = spans[row * spans_strides[0]], end = spans[row * spans_strides[0] + 1], low = {low};
  const int tiles = (end - low + {tile} - 1) / {tile}, chunk = (tiles + gridDim.x - 1) / gridDim.x * {tile};
  const int start = min(low + int(blockIdx.x) * chunk, end);
  {k_in}
  {v_in}
  const int64_t* table = tables + row * tables_strides[0];
  const {k_paged} keys = {{k_in, table, first}};
  const {v_paged} values = {{v_in, table, first}};
  const Visible visible = {{nullptr, 0, 0, true, {window}}};
  const int64_t at = (int64_t(query) * queries_shape[1] + head) * gridDim.x + blockIdx.x;
  attend_rows<{type}, {k_bits}, {v_bits}, {group_size}, {k_dim}, {k_block}, {v_dim}, {tile}>(
      queries + query * queries_strides[0] + head * queries_strides[1],
      queries_strides[1], queries_strides[0], queries_strides[3], n, {scale!r}f * LOG2E,
      keys, values, visible, first_row, end_row, start, min(start + chunk, end), end,
      stats + at * 2, partial + at * {v_dim}, gridDim.x, int64_t(gridDim.x) * queries_shape[1]);
"""


def flash_prefill(
    of: LayerBlocks, queries: mx.array, scale: float, sinks: mx.array | None, packed_queries: mx.array | None = None
) -> mx.array:
    """Attend with each row's last n queries [rows, heads, n, k_dim]: [rows, heads, n, v_dim]."""
    rows, heads, n, _ = queries.shape
    several = shares((Run(row, row * n, n) for row in range(rows)), heads // of.group.kv_heads)
    packed = None if packed_queries is None else _by_token(packed_queries)
    out = flash_runs(of, _by_token(queries), mx.array(several), scale, sinks, packed)
    return out.reshape(rows, n, heads, -1).swapaxes(1, 2)


def _by_token(queries: mx.array) -> mx.array:
    rows, heads, n, _ = queries.shape
    return queries.swapaxes(1, 2).reshape(rows * n, heads, 1, -1)


def flash_runs(
    of: LayerBlocks,
    queries: mx.array,
    shares: mx.array,
    scale: float,
    sinks: mx.array | None,
    packed_queries: mx.array | None = None,
) -> mx.array:
    """Attend with runs of queries [T, heads, 1, k_dim] in 16 bits: [T, heads, 1, v_dim]. Runs may differ in length (Ye
    et al., 2025, "FlashInfer").
    """
    group, codec, tables = of.group, of.codec, of.tables
    queries = filled_up(queries, codec.format.group_size)
    count, heads, n, _ = queries.shape
    if n != 1 or queries.dtype != group.dtype or group.dtype not in (mx.bfloat16, mx.float16):
        raise ValueError(f"flash prefill of {queries.dtype} queries over blocks of {group.dtype}")
    _check(group)
    packed = codec.queries(queries) if packed_queries is None else packed_queries
    tokens = tables.blocks.shape[1] * group.tokens
    tiles = -(-(min(tokens, group.window + count) if group.window else tokens) // _TILE)
    blocks = group.kv_heads * shares.shape[0]
    chunks = -(-tiles // min(-(-tiles // max(1, _PREFILL_BLOCKS // blocks)), _LONGEST // _TILE))
    stats, partial = _prefill_kernel(group, float(scale))(
        inputs=[packed, tables.blocks, tables.spans, shares, of.layer, of.written],
        grid=(chunks * _THREADS, blocks, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(count, heads, 1, chunks, 2), (count, heads, 1, chunks, group.v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, queries, scale, sinks, codec, codec.output_mean)


def over_arrays(
    of: LayerBlocks,
    queries: mx.array,
    total: int,
    mask: mx.array | str | None,
    scale: float,
    sinks: mx.array | None,
    packed_queries: mx.array | None = None,
) -> mx.array:
    """Attend with queries [1, heads, n, k_dim] over the last `total` tokens: [1, heads, n, v_dim].

    K and V become arrays in the packed basis: only as many rows are multiplied as there are queries.
    """
    codec = of.codec
    begins, queries = of.tables.spans[:, 1] - total, filled_up(queries, codec.format.group_size)
    k, v = kernels.decoded_in_packed_basis(of, begins, total, with_k_mean=sinks is not None)
    packed = codec.queries(queries) if packed_queries is None else packed_queries
    found = mx.fast.scaled_dot_product_attention(packed, k, v, scale=scale, mask=mask, sinks=sinks)
    return times_matrices(found, bases[1].back) if (bases := codec.kernel_bases) else codec.outputs(found)


def _check(group: PagedGroup) -> None:
    by, k_dim, v_dim = group.format, group.k_dim, group.v_dim
    if not readable(k_dim, by.k) or not readable(v_dim, by.v) or k_dim % 16 or v_dim % 16:
        raise ValueError(f"flash prefill over {by} bits by {by.group_size}, widths {k_dim} and {v_dim}")
    if 2 * _TILE * (k_dim + 8 + v_dim + 8) > _SHARED_BYTES:
        raise ValueError(f"flash prefill over widths {k_dim} and {v_dim}: a tile does not fit into shared memory")


@lru_cache(maxsize=64)
def _prefill_kernel(group: PagedGroup, scale: float) -> Any:
    low = f"max(first, end - n - {group.window} + 1)" if group.window else "0"
    source = _ATTEND.format(
        kv_heads=group.kv_heads, tile=_TILE, low=low, window=group.window, scale=scale, **group.fields()
    )
    inputs = ["queries", "tables", "spans", "shares", "layer", "after"]
    files = [*TILES, "paged/paged.cu", "attention/flash_prefill.cu"]
    return kernel("paged_prefill", inputs, ["stats", "partial"], source, files, group.rotated_width)


_LATENT_ROWS, _LATENT_BLOCKS = 16, 132

_LATENTS = """
  const int heads = queries_shape[1], n = queries_shape[2], row = blockIdx.z, kv_head = 0;
  const int first_row = blockIdx.y * {rows}, first = spans[row * spans_strides[0]];
  const int high = spans[row * spans_strides[0] + 1];
  const int tiles = (high + {tile} - 1) / {tile}, chunk = (tiles + gridDim.x - 1) / gridDim.x * {tile};
  const int start = min(int(blockIdx.x) * chunk, high);
  {k_in}
  {v_in}
  const int64_t* table = tables + row * tables_strides[0];
  const {k_paged} latents = {{k_in, table, first}};
  const {v_paged} rotary = {{v_in, table, first}};
  const Visible visible = {{nullptr, 0, 0, true}};
  const int64_t at = int64_t(row) * heads * n * gridDim.x + blockIdx.x;
  attend_latents<{type}, {k_bits}, {v_bits}, {group_size}, {k_dim}, {k_block}, {v_dim}, {v_block}, {tile}>(
      queries + row * queries_strides[0], queries_strides[1], queries_strides[2], queries_strides[3],
      rotary_queries + row * rotary_queries_strides[0],
      rotary_queries_strides[1], rotary_queries_strides[2], rotary_queries_strides[3],
      n, {scale!r}f * LOG2E,
      latents, rotary, visible, first_row, min(first_row + {rows}, heads * n), start, min(start + chunk, high), high,
      stats + at * 2, partial + at * {k_dim}, gridDim.x);
"""


def flash_latents(of: LayerBlocks, queries: mx.array, rotary_queries: mx.array, tokens: int, scale: float) -> mx.array:
    """Attend over latents (K and V in one) and rotary keys: [rows, heads, n, k_dim].

    `queries` [rows, heads, n, k_dim] are in latent space, `rotary_queries` [rows, heads, n, v_dim] have positions.
    `tokens` is the most of a row.
    """
    group, codec, tables, by = of.group, of.codec, of.tables, of.codec.format
    queries, rotary_queries = filled_up(queries, by.group_size), filled_up(rotary_queries, by.group_size)
    rows, heads, n, k_dim = queries.shape
    if queries.dtype != group.dtype or group.dtype not in (mx.bfloat16, mx.float16):
        raise ValueError(f"flash attention of {queries.dtype} queries over latents in blocks of {group.dtype}")
    _check_latents(group)
    blocks, tiles = -(-heads * n // _LATENT_ROWS), -(-tokens // _TILE)
    chunks = -(-tiles // -(-tiles // max(1, _LATENT_BLOCKS // (rows * blocks))))
    stats, partial = _latents_kernel(group, float(scale))(
        inputs=[queries, rotary_queries, tables.blocks, tables.spans, of.layer, of.written],
        grid=(chunks * _THREADS, blocks, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, n, chunks, 2), (rows, heads, n, chunks, k_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, queries, scale, None, codec, codec.k_mean)


def _check_latents(group: PagedGroup) -> None:
    by, k_dim, v_dim = group.format, group.k_dim, group.v_dim
    if not readable(k_dim, by.k) or not readable(v_dim, by.v) or k_dim % 32 or v_dim % 32 or k_dim > 1024:
        raise ValueError(f"flash attention over latents in {by} bits by {by.group_size}, widths {k_dim} and {v_dim}")
    if 2 * _TILE * (k_dim + 8 + v_dim + 8) + 8 * _LATENT_ROWS * (_TILE + 4) > _SHARED_BYTES:
        raise ValueError(f"flash attention over latents of {k_dim} and {v_dim}: a tile does not fit into shared memory")


@lru_cache(maxsize=64)
def _latents_kernel(group: PagedGroup, scale: float) -> Any:
    source = _LATENTS.format(rows=_LATENT_ROWS, tile=_TILE, scale=scale, **group.fields())
    inputs = ["queries", "rotary_queries", "tables", "spans", "layer", "after"]
    files = [*TILES, "paged/paged.cu", "attention/flash_latents.cu"]
    return kernel("paged_latents", inputs, ["stats", "partial"], source, files, group.rotated_width)
