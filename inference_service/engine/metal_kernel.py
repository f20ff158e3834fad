"""Kernels of our own for Apple's GPUs: device code in .metal files, compiled by MLX when it is first used.

It keeps to what the Metal Shading Language has of C++14, and was never run on such a GPU: tests run it on the CPU, and
the self-test decides at load.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.cuda_kernel import named_by_source
from inference_service.engine.rotation import sign_words

METAL_TYPES: Final = {mx.bfloat16: "bfloat16_t", mx.float16: "float16_t", mx.float32: "float"}
"""The types that K, V and queries may have, as MLX calls them in its kernels."""


@cache
def available() -> bool:
    """Whether arrays are computed on a device that these kernels are for."""
    return bool(mx.metal.is_available() and mx.default_device().type == mx.DeviceType.gpu)


def kernel(
    name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, files: Sequence[str], width: int
) -> Any:
    """A kernel of `source` behind some .metal files of this package, as `mx.fast.metal_kernel` takes it.

    `width` is that of the widest rows that it rotates, or 0. Strides are as they are. What the compiler finds comes up
    as RuntimeError when a result is evaluated.
    """
    declarations = f"constant uint32_t SIGNS[] = {sign_words(width)};\n"
    return named_by_source(mx.fast.metal_kernel, name, inputs, outputs, source, declarations, files)
