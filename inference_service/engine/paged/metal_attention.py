"""Attention of one query per row over the pool's blocks, as a kernel for Apple GPUs; `paged.attention` has NVIDIA's.

Metal kernels know no addresses: the segments of the rows' blocks are inputs. They do not write there either: K and V of
the pass's own tokens are inputs, too, and the host copies them into blocks after the pass.

Never timed, as no such GPU was at hand: sizes are those of MLX's own attention over long contexts, or guesses.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import mlx.core as mx

from inference_service.engine.attention.chunks import joined, merge_inputs, parts, split
from inference_service.engine.codec import KVCodec
from inference_service.engine.metal_kernel import METAL_TYPES, kernel
from inference_service.engine.paged.kernels import PagedGroup
from inference_service.engine.quantization import (
    KVFormat,
    Quantization,
    Quantized,
    dequantize,
    filled_up,
    last_axes,
)
from inference_service.engine.rotation import block, rotated

THREADGROUP_BYTES: Final = 32 * 1024
"""Most memory of a threadgroup."""
THREADGROUP_THREADS: Final = 1024
"""Most threads of a threadgroup."""
MOST_SEGMENTS: Final = 16
"""A kernel has 31 buffers; this one takes 10 for all else, and pads segments to a power of two."""

_SIMDGROUPS = 4
_SHORTEST = 64
"""Fewest tokens of a chunk."""
_THREADGROUPS = 512
"""Threadgroups to aim at: some per core of a large GPU. More cost more to merge."""
_FLOATS = 32
"""Registers that a thread may spend on queries, and then on outputs, of several heads."""
_WIDEST_SHARE = 64
"""As `_FLOATS`, for one head."""
_LOG2E = 1.4426950408889634

_FILES = ("rotation.metal", "attention/quantized.metal")

_CHUNKS = """
  threadgroup float memory[{floats}];
  const int chunks = static_cast<int>(threadgroups_per_grid.x);
  const int index = static_cast<int>(threadgroup_position_in_grid.x);
  const int tile = static_cast<int>(threadgroup_position_in_grid.y);
  const int row = static_cast<int>(threadgroup_position_in_grid.z);
  const int parts = chunks / places_shape[1], chunk = {tokens} / parts, at_block = index / parts;
  const int first = spans[row * spans_strides[0]], low = spans[row * spans_strides[0] + spans_strides[1]];
  const int end = spans[row * spans_strides[0] + 2 * spans_strides[1]];
  const int start = max(first + index * chunk, low), own = min(first + (index + 1) * chunk, end) - start;
  const int kv_head = tile / {tiles}, head = tile * {heads};
  const int simdgroup = static_cast<int>(simdgroup_index_in_threadgroup);
  const int lane = static_cast<int>(thread_index_in_simdgroup);
  const int64_t at = (row * static_cast<int64_t>(threadgroups_per_grid.y) + tile) * {heads} * chunks + index;
  if (own <= 0) {{
    if (simdgroup == 0) {{
      for (int h = lane; h < {heads}; h += 32) {{
        stats[(at + h * chunks) * 2] = LEAST;
        stats[(at + h * chunks) * 2 + 1] = 0.0f;
      }}
    }}
    return;
  }}
  const int64_t entry = row * places_strides[0] + at_block * places_strides[1];
  const device uint32_t* block = segment_0;
  {segments}
  block += static_cast<int64_t>(places[entry + places_strides[2]]) * {words};
  const int layer_head = layer[0] * {kv_heads} + kv_head, token = (start - first) % {tokens};
  const auto keys = {keys};
  const auto values = {values};
  load_queries<{heads}, {k_dim}, {k_block}, {simdgroups}>(
      queries + row * queries_strides[0] + head * queries_strides[1], queries_strides[1], queries_strides[3],
      {scale!r}f, memory, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  score_tokens<Share<{k_bits}, {group_size}, {k_dim}, {k_lanes}>, {heads}, {k_lanes}, {simdgroups}>(
      keys, own, memory, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  weigh_tokens<{heads}, {simdgroups}>(own, stats + at * 2, chunks * 2, memory, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  add_values<Share<{v_bits}, {group_size}, {v_dim}, {v_lanes}>, {heads}, {v_lanes}, {simdgroups}>(
      values, own, partial + at * {v_dim}, static_cast<int64_t>(chunks) * {v_dim}, memory, simdgroup, lane);
"""
_SEGMENT = "if (places[entry] == {n}) block = segment_{n};"
_SIDE = "in_block<{type}, {words}, {groups}, {tokens}>(block, {at}, layer_head, token)"

_MERGE = """
  threadgroup float memory[{v_dim}];
  const int chunks = stats_shape[3], index = static_cast<int>(threadgroup_position_in_grid.x);
  {head}
  const int lane = static_cast<int>(thread_index_in_simdgroup);
  const int thread_index = static_cast<int>(simdgroup_index_in_threadgroup) * 32 + lane;
  const int64_t at = static_cast<int64_t>(index) * chunks;
  {sink}
  merge_chunks<{v_dim}, {v_block}, {sunk}>(
      stats + at * 2, partial + at * {v_dim}, chunks, sink, {mean}, out + index * {v_dim}, memory, thread_index, lane);
"""
_HEAD = "const int heads = stats_shape[1], head = index % heads;"
_SINK = "const float sink = (static_cast<float>(sinks[head * sinks_strides[0]]){mean}) * LOG2E;"
_SINK_MEAN = """ - {scale!r}f * product<{k_dim}, {v_dim}>(
      queries + index / heads * queries_strides[0] + head * queries_strides[1], queries_strides[3],
      k_mean + head * k_mean_shape[0] / heads * k_mean_strides[0], k_mean_strides[2], memory, thread_index, lane)"""
_MEAN = "v_mean + head * v_mean_shape[0] / heads * v_mean_strides[0], v_mean_strides[2]"


class Places(NamedTuple):
    """Where K and V of some rows lie.

    `segments` are uint32 [blocks, words]. `blocks` int32 [rows, n, 2] are each block's segment, as an index into these,
    and its index there. `spans` int32 [rows, 3] are the position at which a row's first block begins, and the first and
    end positions that it sees in blocks; its own token is at the end.
    """

    segments: Sequence[mx.array]
    blocks: mx.array
    spans: mx.array


def flash_decoding(
    group: PagedGroup,
    layer: mx.array,
    queries: mx.array,
    own: tuple[Quantized, Quantized],
    places: Places,
    codec: KVCodec,
    scale: float,
    sinks: mx.array | None,
) -> mx.array:
    """Compute attention of queries [rows, heads, 1, k_dim] over blocks and each row's `own` packed K and V [rows,
    kv_heads, 1, …]: [rows, heads, 1, v_dim].

    `layer` int32 [1] is the layer's index in the group; `sinks` [heads]. Raises ValueError for unsupported shapes.
    Errors of the compiler or driver surface as RuntimeError when the result is evaluated.
    """
    queries = filled_up(queries, codec.format.group_size)
    balanced = codec.queries(queries)
    rows, heads, n, _ = queries.shape
    if n != 1 or queries.dtype != group.dtype:
        raise ValueError(f"{n} queries of {queries.dtype} over blocks of {group.dtype}")
    segments = list(places.segments)
    segments += segments[:1] * ((1 << (len(segments) - 1).bit_length()) - len(segments))  # For few kernels.
    attend, together = _chunks_kernel(group, heads // group.kv_heads, float(scale), len(segments))
    tiles, blocks = heads // together, places.blocks.shape[1]
    chunks = blocks * parts(rows * tiles * blocks, group.tokens, _SHORTEST, _THREADGROUPS)
    stats, partial = attend(
        inputs=[balanced, places.blocks, places.spans, layer, *segments],
        grid=(chunks * 32 * _SIMDGROUPS, tiles, rows),
        threadgroup=(32 * _SIMDGROUPS, 1, 1),
        output_shapes=[(rows, heads, n, chunks, 2), (rows, heads, n, chunks, group.v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    stats, partial = (
        mx.concatenate(list(each), axis=3)
        for each in zip((stats, partial), _own_chunk(balanced, own, codec, scale), strict=True)
    )
    return joined(stats, partial, queries, scale, sinks, codec, codec.output_mean, _merge_kernel)


def _own_chunk(
    queries: mx.array, own: tuple[Quantized, Quantized], codec: KVCodec, scale: float
) -> tuple[mx.array, mx.array]:
    """Return stats and outputs, as quantized.metal has them, for a chunk of one token."""
    by, group = codec.format, queries.shape[1] // own[0].weights.shape[1]
    keys, values = (mx.repeat(_exact(each, how), group, axis=1) for each, how in zip(own, (by.k, by.v), strict=True))
    queries = queries.astype(mx.float32)
    queries = rotated(queries) if codec.rotates else queries
    scores = (queries * keys).sum(axis=-1, keepdims=True) * (scale * _LOG2E)
    return mx.concatenate([scores, mx.ones_like(scores)], axis=-1)[:, :, :, None], values[:, :, :, None]


def _exact(packed: Quantized, by: Quantization) -> mx.array:
    scales, biases = (each.astype(mx.float32) for each in (packed.scales, packed.biases))
    return dequantize(Quantized(packed.weights, scales, biases), by)


@lru_cache(maxsize=64)
def _chunks_kernel(group: PagedGroup, heads: int, scale: float, segments: int) -> tuple[Any, int]:
    """Return the kernel for `heads` query heads per KV head, and how many a threadgroup takes. MLX declares input
    types.
    """
    by, k_dim, v_dim = group.format, group.k_dim, group.v_dim
    by_lanes, share = split(heads, k_dim, v_dim, by, _FLOATS)
    floats = by_lanes.heads * max(k_dim, group.tokens, _SIMDGROUPS * v_dim)
    if share > _WIDEST_SHARE or k_dim % 32 or v_dim % 32 or v_dim > THREADGROUP_THREADS:
        raise ValueError(f"flash decoding over widths {k_dim} and {v_dim}")
    if 4 * floats > THREADGROUP_BYTES:
        raise ValueError(f"flash decoding over blocks of {group.tokens} tokens of widths {k_dim} and {v_dim}")
    if segments > MOST_SEGMENTS:
        raise ValueError(f"flash decoding over {segments} segments")
    width = k_dim if block(k_dim, by) else 0
    source = _CHUNKS.format(
        floats=floats,
        tiles=heads // by_lanes.heads,
        simdgroups=_SIMDGROUPS,
        tokens=group.tokens,
        words=group.words,
        kv_heads=group.kv_heads,
        segments="\n  ".join(_SEGMENT.format(n=n) for n in range(1, segments)),
        keys=_side(group, by.k, k_dim, group.offsets[:3]),
        values=_side(group, by.v, v_dim, group.offsets[3:]),
        k_dim=k_dim,
        k_block=block(k_dim, by),
        v_dim=v_dim,
        k_bits=by.k_bits,
        v_bits=by.v_bits,
        group_size=by.group_size,
        scale=scale,
        **by_lanes._asdict(),
    )
    inputs = ["queries", "places", "spans", "layer", *(f"segment_{n}" for n in range(segments))]
    files = [*_FILES, "paged/paged.metal", "attention/flash_decoding.metal"]
    return kernel("paged_decoding", inputs, ["stats", "partial"], source, files, width), by_lanes.heads


def _side(group: PagedGroup, by: Quantization, width: int, offsets: Sequence[int]) -> str:
    words, groups, _ = last_axes(width, by).values()
    at = ", ".join(str(offset // 4) for offset in offsets)
    return _SIDE.format(type=METAL_TYPES[group.dtype], words=words, groups=groups, tokens=group.tokens, at=at)


@lru_cache(maxsize=256)
def _merge_kernel(
    dtype: mx.Dtype, k_dim: int, v_dim: int, by: KVFormat, scale: float, sinks: bool, centred: bool
) -> Any:
    named = {"k_dim": k_dim, "v_dim": v_dim, "scale": float(scale)}
    source = _MERGE.format(
        v_block=block(v_dim, by),
        head=_HEAD if sinks or centred else "",
        sink=_SINK.format(mean=_SINK_MEAN.format(**named) if centred else "") if sinks else "const float sink = 0.0f;",
        sunk="true" if sinks else "false",
        mean=_MEAN if centred else f"static_cast<const device {METAL_TYPES[dtype]}*>(nullptr), 0",
        v_dim=v_dim,
    )
    inputs = merge_inputs(sinks=sinks, centred=centred)
    files = [*_FILES, "attention/merging.metal"]
    return kernel("joined", inputs, ["out"], source, files, v_dim if block(v_dim, by) else 0)
