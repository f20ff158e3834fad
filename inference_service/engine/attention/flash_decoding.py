"""Attention of one query per row over packed K and V, as a kernel for NVIDIA GPUs.

Flash decoding (Dao et al., 2023, "Flash-Decoding for long-context inference"): the tokens are split into chunks, so
that one row alone fills the GPU, and a second kernel joins the chunks' results. The first rotates queries where it
loads them, the second outputs, so that the packed basis costs no kernels of its own.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import mlx.core as mx

from inference_service.engine.attention.chunks import FILES, SIDES, block, joined, readable, template_fields, unit
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import CUDA_TYPES, kernel
from inference_service.engine.quantization import KVFormat, Quantized, filled_up, width_of

_THREADS = 256
_LONGEST_CHUNK = 512
_SHORTEST_CHUNK = 64
_DECODE_BLOCKS = 384
"""Blocks to aim at: about three on each multiprocessor of a large GPU. More would cost more to merge."""
_FLOATS = 64
"""Registers that a lane may spend on queries, and then on outputs."""

_CHUNKS = """
  const int tokens = k_words_shape[2], chunk = (tokens + gridDim.x - 1) / gridDim.x, start = blockIdx.x * chunk;
  const int kv_head = blockIdx.y / {tiles}, head = blockIdx.y * {heads}, row = blockIdx.z;
  {sides}
  const int64_t at = (row * int64_t(gridDim.y) * {heads} + head) * gridDim.x + blockIdx.x;
  attend_chunk<{type}, {k_bits}, {v_bits}, {group_size}, {heads}, {k_dim}, {k_block}, {k_lanes}, {v_dim}, {v_lanes},
               {threads}, {chunk}>(
      queries + row * queries_strides[0] + head * queries_strides[1],
      queries_strides[1], queries_strides[3], {scale!r}f,
      keys, values, {visible}, min(chunk, tokens - start),
      stats + at * 2, gridDim.x * 2, partial + at * {v_dim}, int64_t(gridDim.x) * {v_dim});
"""


class _Split(NamedTuple):
    """How heads and widths are split: query heads of one block, and lanes for a token's K and V."""

    heads: int
    k_lanes: int
    v_lanes: int


def flash_decoding(
    queries: mx.array,
    keys: Quantized,
    values: Quantized,
    codec: KVCodec,
    scale: float,
    mask: mx.array | None,
    sinks: mx.array | None,
) -> mx.array:
    """Attention of queries [rows, heads, 1, k_dim] over K and V whose rows are contiguous; [rows, heads, 1, v_dim].

    `mask` is bool and broadcasts to [rows, 1, 1, tokens]; `sinks` [heads]. Raises ValueError for shapes that the
    kernels do not know; what the compiler or the driver finds comes up as RuntimeError when the result is evaluated.
    """
    by = codec.format
    queries = filled_up(queries, by.group_size)
    rows, heads, _, k_dim = queries.shape
    kv_heads, tokens = keys.weights.shape[1:3]
    v_dim, dtype = width_of(values, by.v), queries.dtype
    if dtype != keys.scales.dtype or dtype not in CUDA_TYPES:
        raise ValueError(f"flash decoding of {dtype} queries over {keys.scales.dtype} scales")
    chunks_kernel, together = _chunks_kernel(dtype, k_dim, v_dim, by, heads // kv_heads, scale, mask is not None)
    inputs = [queries, *keys, *values]
    if mask is not None:
        inputs.append(mx.broadcast_to(mask, (rows, 1, 1, tokens)))
    tiles = heads // together
    chunk = min(_LONGEST_CHUNK, max(_SHORTEST_CHUNK, rows * tiles * tokens // _DECODE_BLOCKS))
    chunks = -(-tokens // chunk)
    stats, partial = chunks_kernel(
        inputs=inputs,
        grid=(chunks * _THREADS, tiles, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, 1, chunks, 2), (rows, heads, 1, chunks, v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, queries, scale, sinks, codec, codec.v_mean)


def _split(group: int, k_dim: int, v_dim: int, by: KVFormat) -> _Split:
    """Raises ValueError where the widths do not split over lanes, or the bits are not known."""
    if not readable(k_dim, by.k) or not readable(v_dim, by.v):
        raise ValueError(f"flash decoding over {by} bits by {by.group_size}, widths {k_dim} and {v_dim}")
    k_lanes, v_lanes = _lanes(k_dim // unit(by.k_bits)), _lanes(v_dim // unit(by.v_bits))
    share = max(k_dim // k_lanes, v_dim // v_lanes)
    heads = max(n for n in range(1, group + 1) if group % n == 0 and (n * share <= _FLOATS or n == 1))
    if share > _FLOATS or v_dim > 1024:
        raise ValueError(f"flash decoding over widths {k_dim} and {v_dim}")
    return _Split(heads, k_lanes, v_lanes)


def _lanes(units: int) -> int:
    """Lanes for a row of so many units: a power of two, so that lanes can exchange what they have."""
    lanes = 16
    while units % lanes:
        lanes //= 2
    return lanes


@lru_cache(maxsize=256)
def _chunks_kernel(
    dtype: mx.Dtype, k_dim: int, v_dim: int, by: KVFormat, group: int, scale: float, masked: bool
) -> tuple[Any, int]:
    """The kernel, and how many query heads a block of it takes."""
    split = _split(group, k_dim, v_dim, by)
    source = _CHUNKS.format(
        tiles=group // split.heads,
        threads=_THREADS,
        chunk=_LONGEST_CHUNK,
        visible="visible + row * visible_strides[0] + start * visible_strides[3], visible_strides[3]"
        if masked
        else "nullptr, 0",
        **split._asdict(),
        **template_fields(dtype, k_dim, v_dim, by, scale, "start"),
    )
    inputs = ["queries", *SIDES, *(["visible"] if masked else [])]
    files = [*FILES, "attention/flash_decoding.cu"]
    width = k_dim if block(k_dim, by) else 0
    return kernel("flash_decoding", inputs, ["stats", "partial"], source, files, width), split.heads
