"""Calibration: means of a model's own K and V, which its codecs subtract, and their bases. Measured once, then data.

Kinds of device differ in the last bits of what they measure, and all KV depends on them. So it is kept in the data
directory by the model's fingerprint, is part of KV's fingerprint, and travels with exports.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save, save_file

from agentmem.process import logs
from inference_service.engine import rotation
from inference_service.engine.balancing import apart
from inference_service.engine.codec import Basis, KVCodec
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.alone import SequenceCaches
from inference_service.engine.quantization import BALANCED, PLAIN, KVFormat

log = logging.getLogger(__name__)

_MOST_OFFERED: Final = 64
"""Means that may wait for their models to be loaded."""
_NEAR: Final = 0.02
"""Tolerance, as a share of a layer's largest mean. SmolLM2's in bfloat16 and float32 are 0.006 apart."""
_APART: Final = 2.0
"""Factor by which squared lengths may differ in two bases of one model."""
_BASES: Final = ("k_basis", "v_basis")

Half = npt.NDArray[np.float16]


class LayerCalibration(NamedTuple):
    """Means of one layer's K (after RoPE) and V, float16 [kv_heads, width], and their bases (`balancing`), float16
    [kv_heads, width, width]; None where nothing is known of the queries.
    """

    k: Half
    v: Half
    k_basis: Half | None = None
    v_basis: Half | None = None

    @property
    def arrays(self) -> dict[str, Half]:
        """By field, without what is None."""
        return {name: side for name, side in self._asdict().items() if side is not None}

    def codec(self, format: KVFormat, dtype: mx.Dtype, kind: type[KVCodec]) -> KVCodec:
        """Return the layer's codec. Engine thread."""
        k, v = (mx.array(mean).astype(dtype) for mean in (self.k, self.v))
        if format.scheme != BALANCED or self.k_basis is None or self.v_basis is None:
            return kind(format, (k, v))
        k_basis, v_basis = (_basis(side, format.group_size, dtype) for side in (self.k_basis, self.v_basis))
        return kind(format, (k, v), (k_basis, v_basis))


class Calibration:
    """What was measured of all layers with KV. Any thread, except `codecs`."""

    def __init__(self, layers: Sequence[LayerCalibration]) -> None:
        self.layers = tuple(layers)
        whole = hashlib.sha256()
        for side in self.arrays.values():
            whole.update(repr(side.shape).encode() + side.tobytes())
        self.digest = whole.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def fits(self, geometry: Geometry) -> bool:
        """Return whether all has the shape of the model's KV."""
        groups = [group for layer in geometry.kv_layers for group in geometry.groups if layer in group.layers]
        fill, balanced = geometry.format.group_size, geometry.format.scheme == BALANCED

        def fit(mean: Half, basis: Half | None, kv_heads: int, width: int) -> bool:
            heads, own = mean.shape
            same = not balanced if basis is None else basis.shape == (heads, own, own)
            return bool(heads == kv_heads and own + -own % fill == width) and same

        return len(self.layers) == len(groups) and all(
            fit(own.k, own.k_basis, group.kv_heads, group.k_dim)
            and fit(own.v, own.v_basis, group.kv_heads, group.v_dim)
            for own, group in zip(self.layers, groups, strict=True)
        )

    def codecs(self, geometry: Geometry, kind: type[KVCodec] = KVCodec) -> list[KVCodec]:
        """Return each layer's codec, of class `kind`. Engine thread."""
        return [
            own.codec(format, geometry.dtype, kind) for format, own in zip(geometry.formats, self.layers, strict=True)
        ]

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Rebuild from `arrays`. Raises ValueError for other input."""
        layers, left = [], dict(arrays)
        for layer in range(len([name for name in arrays if name.startswith("k.")])):
            own = LayerCalibration(*(left.pop(f"{name}.{layer}", None) for name in LayerCalibration._fields))
            if own.k is None or own.v is None or (own.k_basis is None) != (own.v_basis is None):
                raise ValueError(f"means or bases of layer {layer} are missing")
            if any(side.dtype != np.float16 or side.ndim != 2 + (name in _BASES) for name, side in own.arrays.items()):
                raise ValueError(f"means or bases of layer {layer} are of another type")
            if not all(np.isfinite(side).all() for side in own.arrays.values()):
                raise ValueError(f"means or bases of layer {layer} are not finite")
            layers.append(own)
        if left or not layers:
            raise ValueError("there are no means of K and V of each layer")
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
        """Return whether both were measured of one model, up to differences between devices."""
        pairs = zip(self.layers, other.layers, strict=False)
        return len(self.layers) == len(other.layers) and all(
            _near_means(a.k, b.k) and _near_means(a.v, b.v)
            and _near_bases(a.k_basis, b.k_basis) and _near_bases(a.v_basis, b.v_basis)
            for a, b in pairs
        )  # fmt: skip

    @property
    def arrays(self) -> dict[str, Half]:
        """Means and bases by name, "k.LAYER", "k_basis.LAYER" and so on, as in a file."""
        return {f"{name}.{i}": side for i, own in enumerate(self.layers) for name, side in own.arrays.items()}


def _near_means(a: Half, b: Half) -> bool:
    if a.shape != b.shape:
        return False
    largest = float(np.abs(b).max(initial=0))
    return bool(np.abs(a.astype(np.float32) - b.astype(np.float32)).max(initial=0) <= _NEAR * largest)


def _near_bases(a: Half | None, b: Half | None) -> bool:
    if a is None or b is None or a.shape != b.shape:
        return a is b
    return all(apart(*of) <= _APART for of in zip(a.astype(np.float64), b.astype(np.float64), strict=True))


def _basis(basis: Half, group_size: int, dtype: mx.Dtype) -> Basis:
    """Return what a layer's K or V are multiplied with: E, with ones for what fills groups, times R."""
    heads, width, _ = basis.shape
    filled = np.tile(np.eye(width + -width % group_size), (heads, 1, 1))
    filled[:, :width, :width] = basis
    return Basis.of(filled @ rotation.matrix(filled.shape[-1]), dtype)


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

    def of(self, fingerprint: str, geometry: Geometry, measure: Callable[[], Calibration]) -> Calibration | None:
        """Return a model's calibration, measured and stored if unknown; None if the scheme needs none or the model has
        no attention.

        Engine thread.
        """
        if geometry.format.scheme == PLAIN or not geometry.groups:
            return None
        known = self.known(fingerprint, geometry)
        if known is None:
            known = measure()
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
