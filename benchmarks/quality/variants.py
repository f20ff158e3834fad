"""The ways to keep KV that are compared: our formats, what they are without one of their parts, and mlx-lm's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache

from inference_service.engine.calibration import Calibration
from inference_service.engine.geometry import Geometry
from inference_service.engine.network import Network
from inference_service.engine.paged.alone import new_caches
from inference_service.engine.quantization import PLAIN, ROTATED, KVFormat

NewCaches = Callable[[], list[Any]]

RUNGS: Final = ("4/3", "4", "4w6", "4w8", "5/4", "5/4w6", "5/4w8", "6/4", "6/4w6", "8/4", "6", "8")
"""Bits of K and V that are measured with the model's own scheme, in groups of 64."""
WINDOWED: Final = tuple(bits for bits in RUNGS if "w" in bits)
"""Rungs with bits of their own in sliding windows, for models that have windows and full attention."""
PLAIN_4: Final = "plain 4"
PLAIN_4_32: Final = "plain 4, groups of 32"
ROTATED_4: Final = "4 rotated"
"""Centred and rotated, but not balanced: as models with latents and those that compute attention themselves have it."""
MLX_LM: Final = {4: "mlx-lm, 4 bits", 8: "mlx-lm, 8 bits"}
"""mlx-lm's QuantizedKVCache with its own attention, in groups of 64."""
NAMES: Final = (PLAIN_4, PLAIN_4_32, ROTATED_4, *RUNGS, *MLX_LM.values())
_GROUP: Final = 64


def formats(scheme: str) -> dict[str, KVFormat]:
    return {
        PLAIN_4: KVFormat(4, 4, _GROUP, PLAIN),
        PLAIN_4_32: KVFormat(4, 4, 32, PLAIN),
        ROTATED_4: KVFormat(4, 4, _GROUP, ROTATED),
        **{bits: KVFormat(group_size=_GROUP, scheme=scheme).with_bits(bits) for bits in RUNGS},
    }


def offered(geometry: Geometry) -> tuple[str, ...]:
    both = geometry.sliding and geometry.full_groups
    return tuple(name for name in NAMES if both or name not in WINDOWED)


def variants(network: Network, geometry: Geometry, calibration: Calibration) -> Mapping[str, NewCaches]:
    """Return all that are `offered`; mlx-lm quantizes no windows. Engine thread."""
    full = {layer for group in geometry.full_groups for layer in group.layers}

    def ours(format: KVFormat) -> NewCaches:
        own = replace(geometry, format=format)
        return partial(new_caches, own, () if format.scheme == PLAIN else calibration.codecs(own))

    def of_mlx_lm(bits: int) -> NewCaches:
        return lambda: [
            QuantizedKVCache(_GROUP, bits) if layer in full else own for layer, own in enumerate(network.own_caches())
        ]

    every = {
        **{name: ours(format) for name, format in formats(geometry.format.scheme).items()},
        **{name: of_mlx_lm(bits) for bits, name in MLX_LM.items()},
    }
    return {name: every[name] for name in offered(geometry)}


def stored_bytes(caches: Sequence[Any], geometry: Geometry, scale_bytes: int | None = None) -> float:
    """Return the bytes of a token's KV without windows, with scales of the compute dtype where `scale_bytes` is
    None.
    """
    return sum(
        part.size * (part.itemsize if part.dtype == mx.uint32 or scale_bytes is None else scale_bytes) / part.shape[2]
        for group in geometry.full_groups
        for layer in group.layers
        for part in _parts(caches[layer])
    )


def _parts(cache: Any) -> list[mx.array]:
    if isinstance(cache, QuantizedKVCache):
        return [*cache.keys, *cache.values]
    one = [array[:, :, :1] for array in cache.working.state]
    keys, values = cache.codec.encode(*one)  # It has them as arrays: what was packed is not kept.
    return [*keys, *values]
