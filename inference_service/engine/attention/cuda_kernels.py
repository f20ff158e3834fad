"""What the kernels for NVIDIA GPUs over packed K and V share: where they run, how they are compiled and joined.

The device code is in .cu files: quantized.cu in front, then the kernel's own.
"""

import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx

CUDA_TYPES = {mx.bfloat16: "__nv_bfloat16", mx.float16: "__half", mx.float32: "float"}
"""The types that K, V and queries may have."""

SIDES = [f"{side}_{part}" for side in "kv" for part in ("words", "scales", "biases")]
"""Names of the arrays of packed K and V, in the order of two `Quantized`."""

_MERGE = """
  const int64_t at = int64_t(blockIdx.x) * stats_shape[3];
  merge_chunks<{type}, {v_dim}>(
      stats + at * 2, partial + at * {v_dim}, stats_shape[3], {sink}, out + blockIdx.x * {v_dim});
"""


@cache
def available() -> bool:
    """Whether arrays are computed on a device that these kernels are for."""
    return bool(mx.cuda.is_available() and mx.default_device().type == mx.DeviceType.gpu)


def joined(stats: mx.array, partial: mx.array, sinks: mx.array | None, dtype: mx.Dtype) -> mx.array:
    """What the chunks gave as one: [rows, heads, n, v_dim] of `dtype`.

    `stats` [rows, heads, n, chunks, 2] and `partial` [rows, heads, n, chunks, v_dim] are float32; `sinks` [heads] are
    logits that take part in the softmax's sum and in nothing else.
    """
    rows, heads, n, _, v_dim = partial.shape
    [out] = _merge_kernel(dtype, v_dim, sinks is not None)(
        inputs=[stats, partial] if sinks is None else [stats, partial, sinks.astype(dtype)],
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
    # MLX keeps compiled kernels by name, also on disk, so the name tells the whole source.
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
def _merge_kernel(dtype: mx.Dtype, v_dim: int, sinks: bool) -> Any:
    of = "blockIdx.x / stats_shape[2] % stats_shape[1]"
    sink = f"sinks + {of}" if sinks else f"static_cast<const {CUDA_TYPES[dtype]}*>(nullptr)"
    source = _MERGE.format(type=CUDA_TYPES[dtype], v_dim=v_dim, sink=sink)
    return kernel("joined", ["stats", "partial", *(["sinks"] if sinks else [])], ["out"], source)


@cache
def _device_code(file: str) -> str:
    """Without comments and indentation: MLX copies it at every call."""
    lines = (Path(__file__).parent / file).read_text().splitlines()
    code = (line.partition("//")[0].strip() for line in lines)
    return "\n".join(line for line in code if line) + "\n"
