"""Attention of one query per row over packed K and V, as kernels for NVIDIA GPUs.

Flash decoding (Dao et al., 2023, "Flash-Decoding for long-context inference"): the tokens are split into chunks, so
that one row alone fills the GPU, and a second kernel joins what the chunks gave. The kernels are in flash_decoding.cu.
"""

import hashlib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from inference_service.engine.caches import Quantized

_THREADS = 256
_LONGEST_CHUNK = 512
_SHORTEST_CHUNK = 64
_BLOCKS = 384
"""Blocks to aim at: about three on each multiprocessor of a large GPU. More would cost more to merge."""
_FLOATS = 64
"""Registers that a lane may spend on queries, and then on outputs."""

_CUDA_TYPES = {mx.bfloat16: "__nv_bfloat16", mx.float16: "__half", mx.float32: "float"}

_CHUNKS = """
  const int tokens = k_words_shape[2], chunk = (tokens + gridDim.x - 1) / gridDim.x, start = blockIdx.x * chunk;
  const int kv_head = blockIdx.y / {tiles}, head = blockIdx.y * {heads}, row = blockIdx.z;
  Side<{type}> keys = {{
      k_words + row * k_words_strides[0] + kv_head * k_words_strides[1] + start * k_words_strides[2],
      k_scales + row * k_scales_strides[0] + kv_head * k_scales_strides[1] + start * k_scales_strides[2],
      k_biases + row * k_biases_strides[0] + kv_head * k_biases_strides[1] + start * k_biases_strides[2],
      k_words_strides[2], k_scales_strides[2], k_biases_strides[2]}};
  Side<{type}> values = {{
      v_words + row * v_words_strides[0] + kv_head * v_words_strides[1] + start * v_words_strides[2],
      v_scales + row * v_scales_strides[0] + kv_head * v_scales_strides[1] + start * v_scales_strides[2],
      v_biases + row * v_biases_strides[0] + kv_head * v_biases_strides[1] + start * v_biases_strides[2],
      v_words_strides[2], v_scales_strides[2], v_biases_strides[2]}};
  const int64_t at = (row * int64_t(gridDim.y) * {heads} + head) * gridDim.x + blockIdx.x;
  attend_chunk<{type}, {bits}, {group_size}, {heads}, {k_dim}, {k_lanes}, {v_dim}, {v_lanes}, {threads}, {chunk}>(
      queries + row * queries_strides[0] + head * queries_strides[1],
      queries_strides[1], queries_strides[3], {scale!r}f,
      keys, values, {visible}, min(chunk, tokens - start),
      stats + at * 2, gridDim.x * 2, partial + at * {v_dim}, int64_t(gridDim.x) * {v_dim});
"""

_MERGE = """
  const int64_t at = int64_t(blockIdx.x) * stats_shape[2];
  merge_chunks<{type}, {v_dim}>(
      stats + at * 2, partial + at * {v_dim}, stats_shape[2], {sink}, out + blockIdx.x * {v_dim});
"""


class _Split(NamedTuple):
    """How heads and widths are split: query heads of one block, and lanes for a token's K and V."""

    heads: int
    k_lanes: int
    v_lanes: int


@cache
def available() -> bool:
    """Whether arrays are computed on a device that these kernels are for."""
    return bool(mx.cuda.is_available() and mx.default_device().type == mx.DeviceType.gpu)


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
    """Attention of queries [rows, heads, 1, k_dim] over K and V of any strides; [rows, heads, 1, v_dim].

    `mask` is bool and broadcasts to [rows, 1, 1, tokens]; `sinks` [heads]. Raises ValueError for shapes that the
    kernels do not know; what the compiler or the driver finds comes up as RuntimeError when the result is evaluated.
    """
    rows, heads, _, k_dim = queries.shape
    kv_heads, tokens = keys.weights.shape[1:3]
    v_dim = values.scales.shape[-1] * group_size
    dtype = queries.dtype
    if dtype != keys.scales.dtype or dtype not in _CUDA_TYPES:
        raise ValueError(f"flash decoding of {dtype} queries over {keys.scales.dtype} scales")
    split = _split(heads // kv_heads, k_dim, v_dim, bits, group_size)
    kernel = _chunks_kernel(dtype, split, k_dim, v_dim, bits, group_size, heads // kv_heads, scale, mask is not None)
    inputs = [queries, *keys, *values]
    if mask is not None:
        inputs.append(mx.broadcast_to(mask, (rows, 1, 1, tokens)))
    tiles = heads // split.heads
    chunk = min(_LONGEST_CHUNK, max(_SHORTEST_CHUNK, rows * tiles * tokens // _BLOCKS))
    chunks = -(-tokens // chunk)
    stats, partial = kernel(
        inputs=inputs,
        grid=(chunks * _THREADS, tiles, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, chunks, 2), (rows, heads, chunks, v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    merge = _merge_kernel(dtype, v_dim, heads, sinks is not None)
    [out] = merge(
        inputs=[stats, partial] if sinks is None else [stats, partial, sinks.astype(dtype)],
        grid=(rows * heads * v_dim, 1, 1),
        threadgroup=(v_dim, 1, 1),
        output_shapes=[(rows, heads, 1, v_dim)],
        output_dtypes=[dtype],
    )
    return out  # type: ignore[no-any-return]


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
        type=_CUDA_TYPES[dtype],
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
    sides = [f"{side}_{part}" for side in "kv" for part in ("words", "scales", "biases")]
    return _kernel(["queries", *sides, *(["visible"] if masked else [])], ["stats", "partial"], source)


@lru_cache(maxsize=64)
def _merge_kernel(dtype: mx.Dtype, v_dim: int, heads: int, sinks: bool) -> Any:
    sink = f"sinks + blockIdx.x % {heads}" if sinks else f"static_cast<const {_CUDA_TYPES[dtype]}*>(nullptr)"
    source = _MERGE.format(type=_CUDA_TYPES[dtype], v_dim=v_dim, sink=sink)
    return _kernel(["stats", "partial", *(["sinks"] if sinks else [])], ["out"], source)


def _kernel(inputs: list[str], outputs: list[str], source: str) -> Any:
    """MLX keeps compiled kernels by name, also on disk, so the name tells the whole source."""
    header = _header()
    digest = hashlib.sha256("".join([*inputs, header, source]).encode()).hexdigest()[:16]
    return mx.fast.cuda_kernel(
        name=f"flash_decoding_{digest}",
        input_names=inputs,
        output_names=outputs,
        source=source,
        header=header,
        ensure_row_contiguous=False,
    )


@cache
def _header() -> str:
    """The device code without comments and indentation: MLX copies it at every call."""
    lines = Path(__file__).with_suffix(".cu").read_text().splitlines()
    code = (line.partition("//")[0].strip() for line in lines)
    return "\n".join(line for line in code if line) + "\n"
