"""Calibration: the means of a model's own K and V, which its codecs subtract. Measured once, then data.

Kinds of device differ in the last bits of means, and all KV depends on them. So means are kept in the data directory by
the model's fingerprint, are part of KV's fingerprint, and travel with exports.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save, save_file

from agentmem.process import logs
from inference_service.engine.codec import KVCodec
from inference_service.engine.device import on_cpu
from inference_service.engine.geometry import Geometry
from inference_service.engine.network import Network
from inference_service.engine.paged.alone import SequenceCaches
from inference_service.engine.paged.passes import banded
from inference_service.engine.pausing import compute, work_clock
from inference_service.engine.quantization import PLAIN

log = logging.getLogger(__name__)

TOKENS: Final = 1024
"""Means over 128 tokens leave a quarter more divergence than over 1,024; more tokens gain nothing (SmolLM2)."""

_FEWEST: Final = 128
_SECONDS: Final = 60.0
"""Rough limit on a CPU's time: slow models use fewer tokens."""
_MOST_OFFERED: Final = 64
"""Means that may wait for their models to be loaded."""
_NEAR: Final = 0.02
"""Tolerance, as a share of a layer's largest mean. SmolLM2's in bfloat16 and float32 are 0.006 apart."""
_LARGEST: Final = float(np.finfo(np.float16).max)


class LayerMeans(NamedTuple):
    """Means of one layer's K (after RoPE) and V, float16 [kv_heads, width]."""

    k: npt.NDArray[np.float16]
    v: npt.NDArray[np.float16]


class Calibration:
    """The means of all layers with KV. Any thread, except `codecs`."""

    def __init__(self, layers: Sequence[LayerMeans]) -> None:
        self.layers = tuple(layers)
        whole = hashlib.sha256()
        for side in (side for means in layers for side in means):
            whole.update(repr(side.shape).encode() + side.tobytes())
        self.digest = whole.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def fits(self, geometry: Geometry) -> bool:
        """Return whether the means have the shape of the model's KV."""
        groups = [group for layer in geometry.kv_layers for group in geometry.groups if layer in group.layers]
        fill = geometry.format.group_size

        def fit(side: npt.NDArray[np.float16], kv_heads: int, width: int) -> bool:
            heads, own = side.shape
            return bool(heads == kv_heads and own + -own % fill == width)

        return len(self.layers) == len(groups) and all(
            fit(means.k, groups[i].kv_heads, groups[i].k_dim) and fit(means.v, groups[i].kv_heads, groups[i].v_dim)
            for i, means in enumerate(self.layers)
        )

    def codecs(self, geometry: Geometry, kind: type[KVCodec] = KVCodec) -> list[KVCodec]:
        """Return each layer's codec, of class `kind`. Engine thread."""
        dtype = geometry.dtype
        return [
            kind(format, (mx.array(means.k).astype(dtype), mx.array(means.v).astype(dtype)))
            for format, means in zip(geometry.formats, self.layers, strict=True)
        ]

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Rebuild from `arrays`. Raises ValueError for other input."""
        if not arrays or len(arrays) % 2:
            raise ValueError("there are no means of K and V of each layer")
        layers = []
        for layer in range(len(arrays) // 2):
            means = LayerMeans(*(np.asarray(arrays.get(f"{side}.{layer}")) for side in "kv"))
            if any(side.dtype != np.float16 or side.ndim != 2 for side in means):
                raise ValueError(f"the means of layer {layer} are missing, or of another type")
            if not all(np.isfinite(side).all() for side in means):
                raise ValueError(f"the means of layer {layer} are not finite")
            layers.append(means)
        return cls(layers)

    @classmethod
    def of_bytes(cls, text: bytes) -> Self:
        """Rebuild from `bytes`. Raises ValueError for other input."""
        try:
            return cls.of_arrays(load(text))
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError("no means in safetensors") from error

    @property
    def bytes(self) -> bytes:
        """The means as safetensors; equal means give equal bytes."""
        return save(self.arrays)

    def near(self, other: "Calibration") -> bool:
        """Return whether both are means of one model, up to differences between devices."""

        def same(a: npt.NDArray[np.float16], b: npt.NDArray[np.float16]) -> bool:
            if a.shape != b.shape:
                return False
            largest = float(np.abs(b).max(initial=0))
            return bool(np.abs(a.astype(np.float32) - b.astype(np.float32)).max(initial=0) <= _NEAR * largest)

        pairs = zip(self.layers, other.layers, strict=False)
        return len(self.layers) == len(other.layers) and all(same(a.k, b.k) and same(a.v, b.v) for a, b in pairs)

    @property
    def arrays(self) -> dict[str, npt.NDArray[np.float16]]:
        """The means by name, "k.LAYER" and "v.LAYER", as in a file."""
        return {
            f"{name}.{i}": side for i, means in enumerate(self.layers) for name, side in zip("kv", means, strict=True)
        }


def new_caches(geometry: Geometry, calibration: Calibration | None) -> SequenceCaches:
    """Return empty caches, one per layer, centred if there is a calibration. Engine thread."""
    return geometry.new_caches(calibration.codecs(geometry) if calibration else ())


class Calibrations:
    """Calibrations in a directory, one safetensors file for each model fingerprint.

    An unreadable one is measured again. Any thread, except `of`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offered: dict[str, Calibration] = {}

    def offer(self, fingerprint: str, calibration: Calibration) -> None:
        """Propose means from elsewhere for a model that was never measured here, so that KV from there fits here.

        They are used only if they are near the measured ones: an offer cannot spoil the model for others.
        """
        if len(self._offered) < _MOST_OFFERED or fingerprint in self._offered:
            self._offered[fingerprint] = calibration

    def known(self, fingerprint: str, geometry: Geometry) -> Calibration | None:
        """Return a model's stored means; None if there are none, or they do not fit the geometry."""
        path = self._path(fingerprint)
        try:
            found = Calibration.of_arrays(load_file(path))
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError) as error:
            logs.event(log, "a calibration cannot be read", logging.WARNING, path=path, error=str(error))
            return None
        return found if found.fits(geometry) else None

    def of(
        self, fingerprint: str, network: Network, token_ids: Sequence[int], geometry: Geometry
    ) -> Calibration | None:
        """Return a model's means, measured over `token_ids` and stored if unknown; None if the scheme needs none or the
        model has no attention.

        Engine thread.
        """
        if geometry.format.scheme == PLAIN or not geometry.groups:
            return None
        known = self.known(fingerprint, geometry)
        if known is None:
            known = calibrate_in_time(network, token_ids, geometry)
            offered = self._offered.pop(fingerprint, None)
            if offered is not None and offered.near(known):
                known = offered
            self.keep(fingerprint, known)
        return known

    def keep(self, fingerprint: str, calibration: Calibration) -> None:
        """Write a model's means atomically. A failure is only logged: the means are measured again later."""
        path = self._path(fingerprint)
        draft = path.with_suffix(".part")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_file(calibration.arrays, draft)
            draft.replace(path)
        except (OSError, SafetensorError) as error:
            logs.event(log, "a calibration cannot be kept", logging.WARNING, path=path, error=str(error))

    def _path(self, fingerprint: str) -> Path:
        return self._directory / f"{fingerprint}.safetensors"


def calibrate(network: Network, token_ids: Sequence[int], geometry: Geometry) -> Calibration:
    """Measure the means over one prefill of `token_ids` with unquantized KV. Engine thread.

    Logits are never computed. Means that are not finite, or too large for float16, count as 0: such a channel is not
    centred.
    """
    caches: list[Any] = list(geometry.new_caches())
    with_kv = [_MeansCache() for _ in geometry.kv_layers]
    for layer, cache in zip(geometry.kv_layers, with_kv, strict=True):
        caches[layer] = cache
    network(mx.array([list(token_ids)]), cache=caches)
    compute(cache.means for cache in with_kv)
    return Calibration([LayerMeans(*(_half(np.array(side)) for side in cache.means)) for cache in with_kv])


def calibrate_in_time(
    network: Network, token_ids: Sequence[int], geometry: Geometry, seconds: float = _SECONDS
) -> Calibration:
    """Calibrate; on a CPU, over as many tokens as it computes in `seconds`, judged by the time of the first ones."""
    if not on_cpu() or len(token_ids) <= _FEWEST:
        return calibrate(network, token_ids, geometry)
    began = work_clock()
    few = calibrate(network, token_ids[:_FEWEST], geometry)
    affordable = int(_FEWEST * seconds / max(work_clock() - began, 1e-6))
    return few if affordable < 2 * _FEWEST else calibrate(network, token_ids[:affordable], geometry)


def _half(means: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    return np.where(np.abs(means) <= _LARGEST, means, 0.0).astype(np.float16)


class _MeansCache:
    """Takes a whole text in one update, and keeps the means of K and V, float32 [kv_heads, width].

    It must not have an attribute `bits`: mlx-lm would treat it as its own quantized cache.
    """

    def __init__(self) -> None:
        self.offset = 0
        self.means: list[mx.array] = []

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.means = [side[0].astype(mx.float32).mean(axis=1) for side in (keys, values)]
        self.offset += keys.shape[2]
        return keys, values

    fetch_arrays = update_and_fetch

    def make_mask(self, n: int, window_size: int | None = None, **_: Any) -> mx.array:
        return banded(n, n, window_size or n)

    def arrays_mask(self, n: int, window_size: int | None, **_: Any) -> mx.array:
        return self.make_mask(n, window_size)
