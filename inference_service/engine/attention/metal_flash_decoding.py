"""Attention of one query per row over packed K and V, as a kernel for Apple's GPUs: the sibling of `flash_decoding`.

Never timed, as no such GPU was at hand: sizes are those of MLX's own attention over long contexts, or guesses. The
self-test takes it only where it is right and measured faster.
"""

from functools import lru_cache
from typing import Any, Final, NamedTuple

import mlx.core as mx

from inference_service.engine.attention.chunks import SIDES, block, readable, unit
from inference_service.engine.codec import KVCodec
from inference_service.engine.metal_kernel import METAL_TYPES, kernel
from inference_service.engine.quantization import KVFormat, Quantized, filled_up, width_of

THREADGROUP_BYTES: Final = 32 * 1024
"""Memory of a threadgroup, at most."""
THREADGROUP_THREADS: Final = 1024
"""Threads of a threadgroup, at most."""

_SIMDGROUPS = 4
_LONGEST_CHUNK = 256
_SHORTEST_CHUNK = 64
_THREADGROUPS = 512
"""To aim at: some for each core of a large GPU. More would cost more to merge."""
_FLOATS = 32
"""Registers that a thread may spend on queries, and then on outputs, of more than one head."""
_WIDEST_SHARE = 64
"""The same of one head."""

_FILES = ("rotation.metal", "attention/quantized.metal")

_CHUNKS = """
  threadgroup float memory[{floats}];
  const int tokens = k_words_shape[2], chunks = static_cast<int>(threadgroups_per_grid.x);
  const int index = static_cast<int>(threadgroup_position_in_grid.x);
  const int tile = static_cast<int>(threadgroup_position_in_grid.y);
  const int row = static_cast<int>(threadgroup_position_in_grid.z);
  const int chunk = (tokens + chunks - 1) / chunks, start = index * chunk, own = min(chunk, tokens - start);
  const int kv_head = tile / {tiles}, head = tile * {heads};
  const int simdgroup = static_cast<int>(simdgroup_index_in_threadgroup);
  const int lane = static_cast<int>(thread_index_in_simdgroup);
  {sides}
  const int64_t at = (row * static_cast<int64_t>(threadgroups_per_grid.y) + tile) * {heads} * chunks + index;
  load_queries<{heads}, {k_dim}, {k_block}, {simdgroups}>(
      queries + row * queries_strides[0] + head * queries_strides[1], queries_strides[1], queries_strides[3],
      {scale!r}f, memory, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  score_tokens<Share<{k_bits}, {group_size}, {k_dim}, {k_lanes}>, {heads}, {k_lanes}, {simdgroups}>(
      keys, {visible}, own, memory, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  weigh_tokens<{heads}, {simdgroups}>(own, stats + at * 2, chunks * 2, memory, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  add_values<Share<{v_bits}, {group_size}, {v_dim}, {v_lanes}>, {heads}, {v_lanes}, {simdgroups}>(
      values, own, partial + at * {v_dim}, static_cast<int64_t>(chunks) * {v_dim}, memory, simdgroup, lane);
"""
_SIDE = """const auto {name} = side(
      {words} + row * {words}_strides[0] + kv_head * {words}_strides[1] + start * {words}_strides[2],
      {scales} + row * {scales}_strides[0] + kv_head * {scales}_strides[1] + start * {scales}_strides[2],
      {biases} + row * {biases}_strides[0] + kv_head * {biases}_strides[1] + start * {biases}_strides[2],
      {words}_strides[2], {scales}_strides[2], {biases}_strides[2]);"""
_VISIBLE = "visible + row * visible_strides[0] + start * visible_strides[3], visible_strides[3]"
_ALL_VISIBLE = "static_cast<const device bool*>(nullptr), 0"

_MERGE = """
  threadgroup float memory[{v_dim}];
  const int chunks = stats_shape[2], index = static_cast<int>(threadgroup_position_in_grid.x);
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


class _Split(NamedTuple):
    """How heads and widths are split: query heads of one threadgroup, and lanes for a token's K and V."""

    heads: int
    k_lanes: int
    v_lanes: int


def metal_flash_decoding(
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
    if dtype != keys.scales.dtype or dtype not in METAL_TYPES:
        raise ValueError(f"flash decoding of {dtype} queries over {keys.scales.dtype} scales")
    chunks_kernel, together = _chunks_kernel(k_dim, v_dim, by, heads // kv_heads, scale, mask is not None)
    inputs = [queries, *keys, *values]
    if mask is not None:
        inputs.append(mx.broadcast_to(mask, (rows, 1, 1, tokens)))
    tiles = heads // together
    chunk = min(_LONGEST_CHUNK, max(_SHORTEST_CHUNK, rows * tiles * tokens // _THREADGROUPS))
    chunks = -(-tokens // chunk)
    stats, partial = chunks_kernel(
        inputs=inputs,
        grid=(chunks * 32 * _SIMDGROUPS, tiles, rows),
        threadgroup=(32 * _SIMDGROUPS, 1, 1),
        output_shapes=[(rows, heads, chunks, 2), (rows, heads, chunks, v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return _joined(stats, partial, queries, scale, sinks, codec)


def _joined(
    stats: mx.array, partial: mx.array, queries: mx.array, scale: float, sinks: mx.array | None, codec: KVCodec
) -> mx.array:
    """What the chunks gave as one, out of the packed basis and with the mean of V: [rows, heads, 1, v_dim].

    `stats` [rows, heads, chunks, 2] and `partial` [rows, heads, chunks, v_dim] are float32, over packed K and V;
    `queries` [rows, heads, 1, k_dim] as the model has them, as wide as packed K; the output has their type.
    """
    rows, heads, _, v_dim = partial.shape
    dtype, k_mean, v_mean = queries.dtype, codec.k_mean, codec.v_mean
    inputs = [stats, partial]
    if sinks is not None:
        inputs.append(sinks)
    if k_mean is not None and v_mean is not None:
        if k_mean.dtype != dtype or v_mean.dtype != dtype:
            raise ValueError(f"means of another type than {dtype}")
        inputs += [v_mean] if sinks is None else [v_mean, queries, k_mean]
    merge = _merge_kernel(dtype, queries.shape[3], v_dim, codec.format, scale, sinks is not None, codec.centred)
    [out] = merge(
        inputs=inputs,
        grid=(rows * heads * v_dim, 1, 1),
        threadgroup=(v_dim, 1, 1),
        output_shapes=[(rows, heads, 1, v_dim)],
        output_dtypes=[dtype],
    )
    return out  # type: ignore[no-any-return]


def _split(group: int, k_dim: int, v_dim: int, by: KVFormat) -> _Split:
    """Raises ValueError where the widths do not split over lanes, or the bits are not known."""
    if not readable(k_dim, by.k) or not readable(v_dim, by.v):
        raise ValueError(f"flash decoding over {by} bits by {by.group_size}, widths {k_dim} and {v_dim}")
    k_lanes, v_lanes = _lanes(k_dim // unit(by.k_bits)), _lanes(v_dim // unit(by.v_bits))
    share = max(k_dim // k_lanes, v_dim // v_lanes)
    heads = max(n for n in range(1, group + 1) if group % n == 0 and (n * share <= _FLOATS or n == 1))
    if share > _WIDEST_SHARE or k_dim % 32 or v_dim % 32 or v_dim > THREADGROUP_THREADS:
        raise ValueError(f"flash decoding over widths {k_dim} and {v_dim}")
    return _Split(heads, k_lanes, v_lanes)


def _lanes(units: int) -> int:
    """Lanes for a row of so many units: a power of two, so that lanes can exchange what they have."""
    return min(16, units & -units)


@lru_cache(maxsize=256)
def _chunks_kernel(k_dim: int, v_dim: int, by: KVFormat, group: int, scale: float, masked: bool) -> tuple[Any, int]:
    """The kernel, and how many query heads a threadgroup of it takes. MLX declares the types of its inputs."""
    split = _split(group, k_dim, v_dim, by)
    sides = (("keys", SIDES[:3]), ("values", SIDES[3:]))
    source = _CHUNKS.format(
        floats=split.heads * max(k_dim, _LONGEST_CHUNK, _SIMDGROUPS * v_dim),
        tiles=group // split.heads,
        simdgroups=_SIMDGROUPS,
        sides="\n  ".join(_SIDE.format(name=name, words=w, scales=s, biases=b) for name, (w, s, b) in sides),
        visible=_VISIBLE if masked else _ALL_VISIBLE,
        k_dim=k_dim,
        k_block=block(k_dim, by),
        v_dim=v_dim,
        k_bits=by.k_bits,
        v_bits=by.v_bits,
        group_size=by.group_size,
        scale=float(scale),
        **split._asdict(),
    )
    inputs = ["queries", *SIDES, *(["visible"] if masked else [])]
    width = k_dim if block(k_dim, by) else 0
    files = [*_FILES, "attention/flash_decoding.metal"]
    return kernel("flash_decoding", inputs, ["stats", "partial"], source, files, width), split.heads


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
    means = ["v_mean", "queries", "k_mean"] if sinks else ["v_mean"]
    inputs = ["stats", "partial", *["sinks"] * sinks, *(means if centred else [])]
    files = [*_FILES, "attention/merging.metal"]
    return kernel("joined", inputs, ["out"], source, files, v_dim if block(v_dim, by) else 0)
