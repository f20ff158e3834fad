"""Rotation R = diag(signs) Hadamard; see `codec`. rotation.cu is its version for NVIDIA GPUs."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.quantization import ROTATED, KVFormat

_SIGNS: Final = b"agentmem.rotated"


def rotated(x: mx.array, mean: mx.array | None = None, scale: float = 1.0) -> mx.array:
    """Return [..., width], less a mean, times R and `scale`."""
    signs = _signs(x.shape[-1], x.dtype)
    return _transformed(x * signs if mean is None else _centred(x, mean, signs), scale)


def rotated_back(x: mx.array, mean: mx.array | None = None) -> mx.array:
    """Return [..., width] times the transpose of R, plus a mean."""
    signs, x = _signs(x.shape[-1], x.dtype), _transformed(x)
    return x * signs if mean is None else _uncentred(x, signs, mean)


def block_width(width: int) -> int:
    """Return how many elements are mixed: the largest power of two that divides the width."""
    return width & -width


def block(width: int, by: KVFormat) -> int:
    """Return the elements that kernels mix; 0 where the format has no rotation, or has it in its matrices."""
    return block_width(width) if by.scheme == ROTATED else 0


def signs(width: int) -> Sequence[int]:
    """Return 1 or -1 by bits of SHAKE-256. KV in files depends on them, so they never change."""
    bits = int.from_bytes(hashlib.shake_256(_SIGNS).digest(-(-width // 8)), "little")
    return [1 - 2 * (bits >> at & 1) for at in range(width)]


def matrix(width: int) -> npt.NDArray[np.float64]:
    """Return R [width, width], of Sylvester's Hadamard matrices."""
    at, block = np.arange(width), block_width(width)
    parity = np.array([each.bit_count() % 2 for each in range(block)])
    one = (1.0 - 2.0 * parity[at[:block, None] & at[None, :block]]) / np.sqrt(block)
    return np.asarray(np.array(signs(width))[:, None] * np.kron(np.eye(width // block), one), dtype=np.float64)


def sign_words(width: int) -> str:
    """Return a C initializer: a bit for each sign, set where it is -1; a zero for width 0."""
    found = signs(width)
    words = [sum((sign < 0) << bit for bit, sign in enumerate(found[at : at + 32])) for at in range(0, width, 32)]
    return f"{{{', '.join(f'{word}u' for word in words or [0])}}}"


@lru_cache(maxsize=32)
def _signs(width: int, dtype: mx.Dtype) -> mx.array:
    return mx.array(list(signs(width)), dtype=dtype)


@partial(mx.compile, shapeless=True)
def _centred(x: mx.array, mean: mx.array, signs: mx.array) -> mx.array:
    return (x - mean) * signs


@partial(mx.compile, shapeless=True)
def _uncentred(x: mx.array, signs: mx.array, mean: mx.array) -> mx.array:
    return x * signs + mean


def _transformed(x: mx.array, scale: float = 1.0) -> mx.array:
    width, block = x.shape[-1], block_width(x.shape[-1])
    scale *= block**-0.5
    if block == width:
        return mx.hadamard_transform(x, scale)
    return mx.hadamard_transform(x.reshape(*x.shape[:-1], width // block, block), scale).reshape(x.shape)
