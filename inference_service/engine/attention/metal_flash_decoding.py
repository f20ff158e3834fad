"""Attention of one query per row over packed K and V, as a kernel for Apple's GPUs: the sibling of `flash_decoding`.

Never timed, as no such GPU was at hand: sizes are those of MLX's own attention over long contexts, or guesses. The
self-test takes it only where it is right and measured faster.
"""

from functools import lru_cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.attention.chunks import SIDES, attended, block, joined, merge_inputs, split
from inference_service.engine.codec import KVCodec
from inference_service.engine.metal_kernel import METAL_TYPES, kernel
from inference_service.engine.quantization import KVFormat, Quantized, filled_up

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
    stats, partial = attended(
        queries, keys, values, by, mask,
        lambda _, k_dim, v_dim, group: _chunks_kernel(k_dim, v_dim, by, group, scale, mask is not None),
        types=METAL_TYPES, threads=32 * _SIMDGROUPS, blocks=_THREADGROUPS, shortest=_SHORTEST_CHUNK,
        longest=_LONGEST_CHUNK,
    )  # fmt: skip
    return joined(stats, partial, queries, scale, sinks, codec, codec.v_mean, _merge_kernel)


@lru_cache(maxsize=256)
def _chunks_kernel(k_dim: int, v_dim: int, by: KVFormat, group: int, scale: float, masked: bool) -> tuple[Any, int]:
    """The kernel, and how many query heads a threadgroup of it takes. MLX declares the types of its inputs."""
    by_lanes, share = split(group, k_dim, v_dim, by, _FLOATS)
    if share > _WIDEST_SHARE or k_dim % 32 or v_dim % 32 or v_dim > THREADGROUP_THREADS:
        raise ValueError(f"flash decoding over widths {k_dim} and {v_dim}")
    sides = (("keys", SIDES[:3]), ("values", SIDES[3:]))
    source = _CHUNKS.format(
        floats=by_lanes.heads * max(k_dim, _LONGEST_CHUNK, _SIMDGROUPS * v_dim),
        tiles=group // by_lanes.heads,
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
        **by_lanes._asdict(),
    )
    inputs = ["queries", *SIDES, *(["visible"] if masked else [])]
    width = k_dim if block(k_dim, by) else 0
    files = [*_FILES, "attention/flash_decoding.metal"]
    return kernel("flash_decoding", inputs, ["stats", "partial"], source, files, width), by_lanes.heads


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
