"""Our kernels for NVIDIA GPUs: .cu files, compiled by MLX on first use."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.rotation import sign_words

CUDA_TYPES: Final = {mx.bfloat16: "__nv_bfloat16", mx.float16: "__half", mx.float32: "float"}


def kernel(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    source: str,
    files: Sequence[str],
    width: int = 0,
    *,
    contiguous: bool = False,
) -> Any:
    """Make a kernel of `source`, after some .cu files. Compiler errors are RuntimeErrors at evaluation. MLX caches
    kernels by name, also on disk: it has a hash of the source.
    """
    header = _signs(width) + "".join(map(_device_code, files))
    digest = hashlib.sha256("".join([*inputs, header, source]).encode()).hexdigest()[:16]
    return mx.fast.cuda_kernel(
        name=f"{name}_{digest}",
        input_names=list(inputs),
        output_names=list(outputs),
        source=source,
        header=header,
        ensure_row_contiguous=contiguous,
    )


@cache
def _device_code(file: str) -> str:
    """Without comments and indentation: MLX copies it at every call."""
    lines = (Path(__file__).parent / file).read_text().splitlines()
    code = (line.partition("//")[0].strip() for line in lines)
    return "\n".join(line for line in code if line) + "\n"


@cache
def _signs(width: int) -> str:
    return f"__constant__ const uint32_t SIGNS[] = {sign_words(width)};\n"
