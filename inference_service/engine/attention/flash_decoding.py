"""Attention of one query per row over packed K and V, as a kernel for NVIDIA GPUs.

Flash decoding (Dao et al., 2023, "Flash-Decoding for long-context inference"): the tokens are split into chunks, so
that one row alone fills the GPU, and a second kernel joins the chunks' results. The first rotates queries where it
loads them, the second outputs, so that the packed basis costs no kernels of its own.
"""

from functools import lru_cache
from typing import Any

import mlx.core as mx

from inference_service.engine.attention.chunks import (
    FILES,
    RANGE,
    SIDES,
    Split,
    attended,
    block,
    joined,
    seen_tokens,
    split,
    template_fields,
)
from inference_service.engine.caches.traced import TokenRange
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import CUDA_TYPES, kernel
from inference_service.engine.quantization import KVFormat, Quantized, filled_up

_THREADS = 256
_LONGEST_CHUNK = 512
SHORTEST_CHUNK = 64
DECODE_BLOCKS = 384
"""Blocks to aim at: about three on each multiprocessor of a large GPU. More would cost more to merge."""
_FLOATS = 64
"""Registers that a lane may spend on queries, and then on outputs."""

_CHUNKS = """
  const int kv_head = blockIdx.y / {tiles}, head = blockIdx.y * {heads}, row = blockIdx.z;
  {seen}
  const int chunk = (high - low + gridDim.x - 1) / gridDim.x, start = min(low + int(blockIdx.x) * chunk, high);
  {sides}
  const int64_t at = (row * int64_t(gridDim.y) * {heads} + head) * gridDim.x + blockIdx.x;
  attend_chunk<{type}, {k_bits}, {v_bits}, {group_size}, {heads}, {k_dim}, {k_block}, {k_lanes}, {v_dim}, {v_lanes},
               {threads}, {chunk}>(
      queries + row * queries_strides[0] + head * queries_strides[1],
      queries_strides[1], queries_strides[3], {scale!r}f,
      keys, values, {visible}, min(chunk, high - start),
      stats + at * 2, gridDim.x * 2, partial + at * {v_dim}, int64_t(gridDim.x) * {v_dim});
"""


def flash_decoding(
    queries: mx.array,
    keys: Quantized,
    values: Quantized,
    codec: KVCodec,
    scale: float,
    mask: mx.array | TokenRange | None,
    sinks: mx.array | None,
) -> mx.array:
    """Attention of queries [rows, heads, 1, k_dim] over K and V whose rows are contiguous; [rows, heads, 1, v_dim].

    `mask` is bool and broadcasts to [rows, 1, 1, tokens], or a range; `sinks` [heads]. Raises ValueError for shapes
    that the kernels do not know; what the compiler or the driver finds comes up as RuntimeError when the result is
    evaluated.
    """
    by = codec.format
    masked, window = isinstance(mask, mx.array), mask.window if isinstance(mask, TokenRange) else None
    queries = filled_up(queries, by.group_size)
    stats, partial = attended(
        queries, keys, values, by, mask,
        lambda dtype, k_dim, v_dim, group: _chunks_kernel(dtype, k_dim, v_dim, by, group, scale, masked, window),
        types=CUDA_TYPES, threads=_THREADS, blocks=DECODE_BLOCKS, shortest=SHORTEST_CHUNK, longest=_LONGEST_CHUNK,
    )  # fmt: skip
    return joined(stats, partial, queries, scale, sinks, codec, codec.v_mean)


def split_of(heads: int, k_dim: int, v_dim: int, by: KVFormat) -> Split:
    """How lanes share so many query heads of a KV head. Raises ValueError for widths that the kernel does not know."""
    by_lanes, share = split(heads, k_dim, v_dim, by, _FLOATS)
    if share > _FLOATS or v_dim > 1024:
        raise ValueError(f"flash decoding over widths {k_dim} and {v_dim}")
    return by_lanes


@lru_cache(maxsize=256)
def _chunks_kernel(
    dtype: mx.Dtype, k_dim: int, v_dim: int, by: KVFormat, group: int, scale: float, masked: bool, window: int | None
) -> tuple[Any, int]:
    """The kernel, and how many query heads a block of it takes. `window` is that of a range, if there is one."""
    by_lanes = split_of(group, k_dim, v_dim, by)
    source = _CHUNKS.format(
        tiles=group // by_lanes.heads,
        threads=_THREADS,
        chunk=_LONGEST_CHUNK,
        visible="visible + row * visible_strides[0] + start * visible_strides[3], visible_strides[3]"
        if masked
        else "nullptr, 0",
        seen=seen_tokens(window),
        **by_lanes._asdict(),
        **template_fields(dtype, k_dim, v_dim, by, scale, "start"),
    )
    inputs = ["queries", *SIDES, *["visible"] * masked, *(RANGE if window is not None else ())]
    files = [*FILES, "attention/flash_decoding.cu"]
    width = k_dim if block(k_dim, by) else 0
    return kernel("flash_decoding", inputs, ["stats", "partial"], source, files, width), by_lanes.heads
