"""Attention over packed K and V as kernels for NVIDIA GPUs: one query per row, and a few.

One query per row is flash decoding (Dao et al., 2023, "Flash-Decoding for long-context inference"): the tokens are
split into chunks, so that one row alone fills the GPU, and a second kernel joins the chunks' results.

A few queries: a next turn's text is a few dozen tokens behind thousands. MLX's fused kernel there, cuDNN, makes a plan
for each pair of numbers of queries and of tokens, which takes 45 to 60 ms of a turn of 50 tokens, as its layers do
(H200, Llama 3.1 8B); scores spelled out in MLX's products take 1.2 to 1.8 ms a layer at 32K tokens. The kernel reads
K and V packed and once, dequantizes tile by tile in shared memory and multiplies on tensor cores: FlashAttention-2
(Dao, 2023) for the tile, and chunks of tokens as in flash decoding. For sm_80 and later.

The device code is in .cu files: quantized.cu in front, then the kernel's own.
"""

import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from inference_service.engine.codec import KVCodec
from inference_service.engine.quantization import KVFormat, Quantized, width_of

CUDA_TYPES = {mx.bfloat16: "__nv_bfloat16", mx.float16: "__half", mx.float32: "float"}
"""The types that K, V and queries may have."""

SIDES = [f"{side}_{part}" for side in "kv" for part in ("words", "scales", "biases")]
"""Names of the arrays of packed K and V, in the order of two `Quantized`."""

_MERGE = """
  const int64_t at = int64_t(blockIdx.x) * stats_shape[3];
  merge_chunks<{type}, {v_dim}>(
      stats + at * 2, partial + at * {v_dim}, stats_shape[3], {sink}, {mean}, out + blockIdx.x * {v_dim});
"""


@cache
def available() -> bool:
    """Whether arrays are computed on a device that these kernels are for."""
    return bool(mx.cuda.is_available() and mx.default_device().type == mx.DeviceType.gpu)


def joined(stats: mx.array, partial: mx.array, sinks: mx.array | None, codec: KVCodec, dtype: mx.Dtype) -> mx.array:
    """What the chunks gave as one, with the mean of V: [rows, heads, n, v_dim] of `dtype`, in the packed basis.

    `stats` [rows, heads, n, chunks, 2] and `partial` [rows, heads, n, chunks, v_dim] are float32; `sinks` float32
    [rows, heads, n] are logits that take part in the softmax's sum and in nothing else (`KVCodec.sink_logits`).
    """
    rows, heads, n, _, v_dim = partial.shape
    optional = [*([] if sinks is None else [sinks]), *([codec.v_offset] if codec.centred else [])]
    [out] = _merge_kernel(dtype, v_dim, sinks is not None, codec.centred)(
        inputs=[stats, partial, *optional],
        grid=(rows * heads * n * v_dim, 1, 1),
        threadgroup=(v_dim, 1, 1),
        output_shapes=[(rows, heads, n, v_dim)],
        output_dtypes=[dtype],
    )
    return out  # type: ignore[no-any-return]


def sides(cuda_type: str, start: str) -> str:
    """Device code that makes `keys` and `values` out of the arrays of `SIDES`, from token `start` on."""
    found = []
    for name, parts in (("keys", SIDES[:3]), ("values", SIDES[3:])):
        begins = [f"{p} + row * {p}_strides[0] + kv_head * {p}_strides[1] + {start} * {p}_strides[2]" for p in parts]
        steps = [f"{p}_strides[2]" for p in parts]
        found.append(f"Side<{cuda_type}> {name} = {{{', '.join([*begins, *steps])}}};")
    return "\n".join(found)


def kernel(name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, file: str = "") -> Any:
    """A kernel of `source` behind quantized.cu and `file`, as mx.fast.cuda_kernel takes it; strides are as they are.

    What the compiler finds comes up as RuntimeError when a result is evaluated.
    """
    # MLX keeps compiled kernels by name, also on disk, so the name stands for the whole source.
    header = _device_code("quantized.cu") + (_device_code(file) if file else "")
    digest = hashlib.sha256("".join([*inputs, header, source]).encode()).hexdigest()[:16]
    return mx.fast.cuda_kernel(
        name=f"{name}_{digest}",
        input_names=list(inputs),
        output_names=list(outputs),
        source=source,
        header=header,
        ensure_row_contiguous=False,
    )


@lru_cache(maxsize=64)
def _merge_kernel(dtype: mx.Dtype, v_dim: int, sinks: bool, mean: bool) -> Any:
    kv_head = "blockIdx.x / stats_shape[2] % stats_shape[1] * mean_shape[0] / stats_shape[1]"
    source = _MERGE.format(
        type=CUDA_TYPES[dtype],
        v_dim=v_dim,
        sink="sinks + blockIdx.x" if sinks else "static_cast<const float*>(nullptr)",
        mean=f"mean + {kv_head} * {v_dim}" if mean else f"static_cast<const {CUDA_TYPES[dtype]}*>(nullptr)",
    )
    return kernel("joined", ["stats", "partial", *["sinks"] * sinks, *["mean"] * mean], ["out"], source)


@cache
def _device_code(file: str) -> str:
    """Without comments and indentation: MLX copies it at every call."""
    lines = (Path(__file__).parent / file).read_text().splitlines()
    code = (line.partition("//")[0].strip() for line in lines)
    return "\n".join(line for line in code if line) + "\n"


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
    codec: KVCodec,
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
    by = codec.format
    v_dim, bits, group_size = width_of(values, by.v), _common_bits(by), by.group_size
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
    chunk = min(_LONGEST_CHUNK, max(_SHORTEST_CHUNK, rows * tiles * tokens // _DECODE_BLOCKS))
    chunks = -(-tokens // chunk)
    stats, partial = chunks_kernel(
        inputs=inputs,
        grid=(chunks * _THREADS, tiles, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, 1, chunks, 2), (rows, heads, 1, chunks, v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    logits = None if sinks is None else codec.sink_logits(queries, scale, sinks)
    return joined(stats, partial, logits, codec, dtype)


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


def _common_bits(by: KVFormat) -> int:
    """Raises ValueError where K and V have bits of their own."""
    if by.k_bits != by.v_bits:
        raise ValueError(f"the kernels know one number of bits, not {by}")
    return by.k_bits


_ROWS, _TILE = 128, 32
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
  attend_rows<{type}, {bits}, {group_size}, {k_dim}, {v_dim}, {tile}>(
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
    rows, heads, n, k_dim = queries.shape
    kv_heads, tokens = keys.weights.shape[1:3]
    by = codec.format
    v_dim, bits, group_size = width_of(values, by.v), _common_bits(by), by.group_size
    dtype = queries.dtype
    if dtype != keys.scales.dtype or dtype not in (mx.bfloat16, mx.float16):
        raise ValueError(f"flash prefill of {dtype} queries over {keys.scales.dtype} scales")
    _check(k_dim, v_dim, bits, group_size)
    inputs = [queries, *keys, *values]
    if isinstance(mask, mx.array):
        inputs.append(mx.broadcast_to(mask, (rows, 1, n, tokens)))
    blocks, tiles = kv_heads * -(-(heads // kv_heads * n) // _ROWS), -(-tokens // _TILE)
    tiles_of_chunk = -(-tiles // max(1, _PREFILL_BLOCKS // (rows * blocks)))
    chunks = -(-tiles // tiles_of_chunk)
    how = "none" if mask is None else "causal" if isinstance(mask, str) else "named"
    stats, partial = _attend_kernel(dtype, k_dim, v_dim, bits, group_size, scale, how)(
        inputs=inputs,
        grid=(chunks * _THREADS, blocks, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, heads, n, chunks, 2), (rows, heads, n, chunks, v_dim)],
        output_dtypes=[mx.float32, mx.float32],
    )
    logits = None if sinks is None else codec.sink_logits(queries, scale, sinks)
    return joined(stats, partial, logits, codec, dtype)


def _check(k_dim: int, v_dim: int, bits: int, group_size: int) -> None:
    """Raise ValueError for shapes that the kernel does not know."""
    if bits not in (4, 8) or k_dim % 16 or v_dim % 16 or group_size % (32 // bits):
        raise ValueError(f"flash prefill over {bits} bits by {group_size}, widths {k_dim} and {v_dim}")
    if 2 * _TILE * (k_dim + 8 + v_dim + 8) > _SHARED_BYTES:
        raise ValueError(f"flash prefill over widths {k_dim} and {v_dim}: a tile does not fit into shared memory")


@lru_cache(maxsize=256)
def _attend_kernel(dtype: mx.Dtype, k_dim: int, v_dim: int, bits: int, group_size: int, scale: float, how: str) -> Any:
    named = how == "named"
    at = "visible_at + row * visible_at_strides[0], visible_at_strides[2], visible_at_strides[3], false"
    source = _ATTEND.format(
        tile=_TILE,
        type=CUDA_TYPES[dtype],
        sides=sides(CUDA_TYPES[dtype], "0"),
        visible=at if named else f"nullptr, 0, 0, {'true' if how == 'causal' else 'false'}",
        k_dim=k_dim,
        v_dim=v_dim,
        bits=bits,
        group_size=group_size,
        scale=float(scale),
    )
    inputs = ["queries", *SIDES, *(["visible_at"] if named else [])]
    return kernel("flash_prefill", inputs, ["stats", "partial"], source, "flash_prefill.cu")
