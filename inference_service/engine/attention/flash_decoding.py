"""Attention of one query per row over packed K and V, as a kernel for NVIDIA GPUs.

Flash decoding (Dao et al., 2023, "Flash-Decoding for long-context inference"): the tokens are split into chunks, so
that one row alone fills the GPU, and a second kernel joins what the chunks gave. The kernel is in flash_decoding.cu.
"""

from functools import cache, lru_cache
from typing import Any, NamedTuple

import mlx.core as mx

from inference_service.engine.attention.cuda_kernels import CUDA_TYPES, SIDES, joined, kernel, sides
from inference_service.engine.caches import Quantized

_THREADS = 256
_LONGEST_CHUNK = 512
_SHORTEST_CHUNK = 64
_BLOCKS = 384
"""Blocks to aim at: about three on each multiprocessor of a large GPU. More would cost more to merge."""
_FLOATS = 64
"""Registers that a lane may spend on queries, and then on outputs."""

_CHUNKS = """
  const int tokens = k_words_shape[2], chunk = (tokens + gridDim.x - 1) / gridDim.x, start = blockIdx.x * chunk;
  const int kv_head = blockIdx.y / {tiles}, head = blockIdx.y * {heads}, row = blockIdx.z;
  {sides}
  const int64_t at = (row * int64_t(gridDim.y) * {heads} + head) * gridDim.x + blockIdx.x;
  attend_chunk<{type}, {bits}, {group_size}, {heads}, {k_dim}, {k_lanes}, {v_dim}, {v_lanes}, {threads}, {chunk}>(
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
    bits: int,
    group_size: int,
    scale: float,
    mask: mx.array | None,
    sinks: mx.array | None,
) -> mx.array:
    """Attention of queries [rows, heads, 1, k_dim] over K and V whose rows are contiguous; [rows, heads, 1, v_dim].

    `mask` is bool and broadcasts to [rows, 1, 1, tokens]; `sinks` [heads]. Raises ValueError for shapes that the
    kernels do not know; what the compiler or the driver finds comes up as RuntimeError when the result is evaluated.
    """
    rows, heads, _, k_dim = queries.shape
    kv_heads, tokens = keys.weights.shape[1:3]
    v_dim = values.scales.shape[-1] * group_size
    dtype = queries.dtype
    if dtype != keys.scales.dtype or dtype not in CUDA_TYPES:
        raise ValueError(f"flash decoding of {dtype} queries over {keys.scales.dtype} scales")
    split = _split(heads // kv_heads, k_dim, v_dim, bits, group_size)
    chunks_kernel = _chunks_kernel(
        dtype, split, k_dim, v_dim, bits, group_size, heads // kv_heads, scale, mask is not None
    )
    inputs = [queries, *keys, *values]
    if mask is not None:
        inputs.append(mx.broadcast_to(mask, (rows, 1, 1, tokens)))
    tiles = heads // split.heads
    chunk = min(_LONGEST_CHUNK, max(_SHORTEST_CHUNK, rows * tiles * tokens // _BLOCKS))
    chunks = -(-tokens // chunk)
    stats, partial = chunks_kernel(
        inputs=inputs,
        grid=(chunks * _THREADS, tiles, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, 1, chunks, 2), (rows, heads, 1, chunks, v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return joined(stats, partial, sinks, dtype)


@cache
def _split(group: int, k_dim: int, v_dim: int, bits: int, group_size: int) -> _Split:
    """Raises ValueError where the widths do not split over lanes, or the bits do not fill words."""
    per_word = 32 // bits
    if bits not in (4, 8) or k_dim % per_word or v_dim % per_word or group_size % per_word:
        raise ValueError(f"flash decoding over {bits} bits by {group_size}, widths {k_dim} and {v_dim}")
    k_lanes, v_lanes = (_lanes(dim // per_word) for dim in (k_dim, v_dim))
    share = max(k_dim // k_lanes, v_dim // v_lanes)
    heads = max(n for n in range(1, group + 1) if group % n == 0 and (n * share <= _FLOATS or n == 1))
    if share > _FLOATS or v_dim > 1024:
        raise ValueError(f"flash decoding over widths {k_dim} and {v_dim}")
    return _Split(heads, k_lanes, v_lanes)


def _lanes(words: int) -> int:
    """Lanes for a row of so many words: a power of two, so that lanes can exchange what they have."""
    lanes = 16
    while words % lanes:
        lanes //= 2
    return lanes


@lru_cache(maxsize=256)
def _chunks_kernel(
    dtype: mx.Dtype,
    split: _Split,
    k_dim: int,
    v_dim: int,
    bits: int,
    group_size: int,
    group: int,
    scale: float,
    masked: bool,
) -> Any:
    source = _CHUNKS.format(
        type=CUDA_TYPES[dtype],
        sides=sides(CUDA_TYPES[dtype], "start"),
        tiles=group // split.heads,
        k_dim=k_dim,
        v_dim=v_dim,
        bits=bits,
        group_size=group_size,
        threads=_THREADS,
        chunk=_LONGEST_CHUNK,
        scale=float(scale),
        visible="visible + row * visible_strides[0] + start * visible_strides[3], visible_strides[3]"
        if masked
        else "nullptr, 0",
        **split._asdict(),
    )
    inputs = ["queries", *SIDES, *(["visible"] if masked else [])]
    return kernel("flash_decoding", inputs, ["stats", "partial"], source, "flash_decoding.cu")
