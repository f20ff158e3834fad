"""Our kernels for Apple's GPUs: device code in .metal files, compiled by MLX on first use.

It keeps to the Metal Shading Language's part of C++14, and was never run on such a GPU: tests run it on the CPU, and
the self-test decides at load.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.cuda_kernel import named_by_source
from inference_service.engine.rotation import sign_words

METAL_TYPES: Final = {mx.bfloat16: "bfloat16_t", mx.float16: "float16_t", mx.float32: "float"}
"""Types of K, V and queries, by their names in MLX's kernels."""


@cache
def available() -> bool:
    """Return whether MLX computes on an Apple GPU."""
    return bool(mx.metal.is_available() and mx.default_device().type == mx.DeviceType.gpu)


def kernel(
    name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, files: Sequence[str], width: int
) -> Any:
    """Make a kernel of `source`, as `mx.fast.metal_kernel` takes it, after some .metal files of this package.

    `width` is that of the widest rows that it rotates, or 0. Inputs keep their strides. Compiler errors raise
    RuntimeError when a result is evaluated.
    """
    declarations = f"constant uint32_t SIGNS[] = {sign_words(width)};\n"
    return named_by_source(mx.fast.metal_kernel, name, inputs, outputs, source, declarations, files)
