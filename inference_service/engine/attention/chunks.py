"""Parts shared by kernels over packed K and V."""

from functools import lru_cache
from typing import Any, Final, NamedTuple

import mlx.core as mx

from agentmem.kv.bits import BITS
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import CUDA_TYPES, kernel
from inference_service.engine.quantization import KVFormat, Quantization
from inference_service.engine.rotation import block

FILES: Final = ("rotation.cu", "attention/quantized.cu")
TILES: Final = (*FILES, "attention/tiles.cu")
_MERGE_FILES: Final = (*TILES, "matrices.cu", "attention/merging.cu")
_MOST_THREADS: Final = 512
"""More than one head is multiplied with a basis up to here."""

_MERGE = """
  const int output = blockIdx.x * {together} + threadIdx.x / {v_dim};
  const int64_t at = int64_t(output) * stats_shape[3];
  {at}
  {sink}
  merge_chunks<{type}, {v_dim}, {v_block}, {together}, {based}>(
      stats + at * 2, partial + at * {v_dim}, stats_shape[3], {sunk}, {mean}, {back}, out + int64_t(output) * {v_dim});
"""
_AT = """
  const int heads = stats_shape[1], n = stats_shape[2], head = output / n % heads;
"""
_SINK = """
  const float sink = (static_cast<float>(sinks[head * sinks_strides[0]]){mean}) * LOG2E;
"""
_SINK_MEAN = """ - {scale!r}f * product<{type}, {k_dim}, {v_dim}, {together}>(
      queries + output / n / heads * queries_strides[0] + head * queries_strides[1]
          + output % n * queries_strides[2], queries_strides[3],
      k_mean + head * k_mean_shape[0] / heads * k_mean_strides[0], k_mean_strides[2])"""
_MEAN = "v_mean + head * v_mean_shape[0] / heads * v_mean_strides[0], v_mean_strides[2]"
_BACK = "v_back + head * v_back_shape[0] / heads * {v_dim} * {v_dim}"


class Split(NamedTuple):
    heads: int
    k_lanes: int
    v_lanes: int


def split(group: int, k_dim: int, v_dim: int, by: KVFormat, floats: int) -> tuple[Split, int]:
    """Return the split, and elements of a row per lane. Raises ValueError."""
    if not readable(k_dim, by.k) or not readable(v_dim, by.v):
        raise ValueError(f"flash decoding over {by} bits by {by.group_size}, widths {k_dim} and {v_dim}")
    k_lanes, v_lanes = _lanes(k_dim // unit(by.k_bits)), _lanes(v_dim // unit(by.v_bits))
    share = max(k_dim // k_lanes, v_dim // v_lanes)
    heads = max(n for n in range(1, group + 1) if group % n == 0 and (n * share <= floats or n == 1))
    return Split(heads, k_lanes, v_lanes), share


def _lanes(units: int) -> int:
    return min(16, units & -units)


def parts(blocks: int, tokens: int, shortest: int, aim: int) -> int:
    """About `aim` over all, none below `shortest` tokens."""
    found = 1
    while blocks * found < aim and not tokens % (2 * found) and tokens // (2 * found) >= shortest:
        found *= 2
    return found


def joined(
    stats: mx.array,
    partial: mx.array,
    queries: mx.array,
    scale: float,
    sinks: mx.array | None,
    codec: KVCodec,
    v_mean: mx.array | None,
) -> mx.array:
    rows, heads, n, _, v_dim = partial.shape
    dtype, k_mean = queries.dtype, codec.k_mean
    bases = codec.kernel_bases
    if bases:
        v_mean = codec.v_mean
    inputs = [stats, partial]
    if sinks is not None:
        inputs.append(sinks)
    if k_mean is not None and v_mean is not None:
        if k_mean.dtype != dtype or v_mean.dtype != dtype:
            raise ValueError(f"means of another type than {dtype}")
        inputs += [v_mean] if sinks is None else [v_mean, queries, k_mean]
    together = 0
    if bases:
        inputs.append(bases[1].back)
        alike = heads // len(bases[1].back) if n == 1 else 1
        together = max(c for c in range(1, alike + 1) if alike % c == 0 and (c == 1 or c * v_dim <= _MOST_THREADS))
    merge = _merge_kernel(
        dtype, queries.shape[3], v_dim, codec.format, scale, sinks is not None, codec.centred, together
    )
    [out] = merge(
        inputs=inputs,
        grid=(rows * heads * n * v_dim, 1, 1),
        threadgroup=(max(1, together) * v_dim, 1, 1),
        output_shapes=[(rows, heads, n, v_dim)],
        output_dtypes=[dtype],
    )
    return out if bases else codec.outputs(out)


def unit(bits: int) -> int:
    """As in quantized.cu."""
    return 8 if 32 % bits else 32 // bits


def readable(width: int, by: Quantization) -> bool:
    """Return whether rows split into whole units, none in two groups."""
    return by.bits in BITS and not width % unit(by.bits) and not by.group_size % unit(by.bits)


@lru_cache(maxsize=256)
def _merge_kernel(
    dtype: mx.Dtype, k_dim: int, v_dim: int, by: KVFormat, scale: float, sinks: bool, centred: bool, together: int
) -> Any:
    named = {"type": CUDA_TYPES[dtype], "k_dim": k_dim, "v_dim": v_dim, "scale": float(scale)}
    named["together"] = max(1, together)
    source = _MERGE.format(
        v_block=block(v_dim, by),
        at=_AT if sinks or centred else "",
        sink=_SINK.format(mean=_SINK_MEAN.format(**named) if centred else "") if sinks else "",
        sunk="&sink" if sinks else "nullptr",
        mean=_MEAN if centred else "nullptr, 0",
        based=str(together > 0).lower(),
        back=_BACK.format(**named) if together else "nullptr",
        **named,
    )
    means = (["v_mean", "queries", "k_mean"] if sinks else ["v_mean"]) if centred else []
    inputs = ["stats", "partial", *["sinks"] * sinks, *means, *["v_back"] * (together > 0)]
    return kernel("joined", inputs, ["out"], source, _MERGE_FILES, v_dim if block(v_dim, by) else 0)
