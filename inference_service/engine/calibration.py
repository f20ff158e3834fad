"""Means of a model's own K and V, and their bases. Measured once: devices differ in the last bits, on which all KV
depends.
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
from inference_service.engine import lost_device, rotation
from inference_service.engine.balancing import apart
from inference_service.engine.blas_threads import one_blas_thread
from inference_service.engine.codec import Basis, KVCodec
from inference_service.engine.geometry import Geometry
from inference_service.engine.quantization import BALANCED, PLAIN, KVFormat

log = logging.getLogger(__name__)

_MOST_OFFERED: Final = 64
_NEAR: Final = 0.02
"""Share of a layer's largest mean. SmolLM2's in bfloat16 and float32 are 0.006 apart."""
_APART: Final = 2.0
"""Factor between squared lengths in two bases of one model."""
MOST_PORTABLE: Final = 32 << 20
"""Llama 3.1 8B's has 9 MB. Without it, KV of another kind of device is computed again."""
_PER_AXIS: Final = 127.0

Half = npt.NDArray[np.float16]
Matrix = npt.NDArray[np.float64]


class LayerCalibration(NamedTuple):
    """Means of K (after RoPE) and V, float16 [kv_heads, width]; of bases axes, int8 [kv_heads, width, width], in
    127ths, and lengths, float16.
    """

    k: Half
    v: Half
    k_axes: npt.NDArray[np.int8] | None = None
    v_axes: npt.NDArray[np.int8] | None = None
    k_lengths: Half | None = None
    v_lengths: Half | None = None

    def with_bases(self, k: Matrix, v: Matrix) -> Self:
        lengths = [np.sqrt(np.square(side).sum(axis=1)) for side in (k, v)]
        axes = [np.rint(side / own[:, None] * _PER_AXIS) for side, own in zip((k, v), lengths, strict=True)]
        (k_axes, v_axes), (k_lengths, v_lengths) = axes, (own.astype(np.float16) for own in lengths)
        return self._replace(
            k_axes=k_axes.astype(np.int8), v_axes=v_axes.astype(np.int8), k_lengths=k_lengths, v_lengths=v_lengths
        )

    @property
    def bases(self) -> tuple[Matrix, Matrix] | None:
        """E of K and V, [kv_heads, width, width]."""
        if self.k_axes is None or self.v_axes is None or self.k_lengths is None or self.v_lengths is None:
            return None
        k, v = (
            axes / _PER_AXIS * lengths.astype(np.float64)[:, None]
            for axes, lengths in ((self.k_axes, self.k_lengths), (self.v_axes, self.v_lengths))
        )
        return k, v

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: side for name, side in self._asdict().items() if side is not None}

    def codec(self, format: KVFormat, dtype: mx.Dtype, kind: type[KVCodec]) -> KVCodec:
        k, v = (mx.array(mean).astype(dtype) for mean in (self.k, self.v))
        if format.scheme != BALANCED or (bases := self.bases) is None:
            return kind(format, (k, v))
        k_basis, v_basis = (_basis(of, format.group_size, dtype, keys=of is bases[0]) for of in bases)
        return kind(format, (k, v), (k_basis, v_basis))


_OF_MEANS: Final = {"k", "v"}
_TYPES: Final = {"": (np.dtype("f2"), 2), "axes": (np.dtype("i1"), 3), "lengths": (np.dtype("f2"), 2)}


class Calibration:
    """Any thread, except `codecs`."""

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
        groups = [group for layer in geometry.kv_layers for group in geometry.groups if layer in group.layers]
        fill, balanced = geometry.format.group_size, geometry.format.scheme == BALANCED

        def fit(mean: Half, axes: Any, lengths: Half | None, kv_heads: int, width: int) -> bool:
            heads, own = mean.shape
            if axes is None or lengths is None:
                same = not balanced
            else:
                same = axes.shape == (heads, own, own) and lengths.shape == (heads, own)
            return bool(heads == kv_heads and own + -own % fill == width) and same

        return len(self.layers) == len(groups) and all(
            fit(own.k, own.k_axes, own.k_lengths, group.kv_heads, group.k_dim)
            and fit(own.v, own.v_axes, own.v_lengths, group.kv_heads, group.v_dim)
            for own, group in zip(self.layers, groups, strict=True)
        )

    def codecs(self, geometry: Geometry, kind: type[KVCodec] = KVCodec) -> list[KVCodec]:
        return [
            own.codec(format, geometry.dtype, kind) for format, own in zip(geometry.formats, self.layers, strict=True)
        ]

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        layers, left = [], dict(arrays)
        for layer in range(len([name for name in arrays if name.startswith("k.")])):
            own = LayerCalibration(*(left.pop(f"{name}.{layer}", None) for name in LayerCalibration._fields))
            if (
                len(own.arrays) not in (len(_OF_MEANS), len(LayerCalibration._fields))
                or not set(own.arrays) >= _OF_MEANS
            ):
                raise ValueError(f"means or bases of layer {layer} are missing")
            if any((side.dtype, side.ndim) != _TYPES[name.partition("_")[2]] for name, side in own.arrays.items()):
                raise ValueError(f"means or bases of layer {layer} are of another type")
            if not all(np.isfinite(side).all() for side in own.arrays.values()):
                raise ValueError(f"means or bases of layer {layer} are not finite")
            layers.append(own)
        if left or not layers:
            raise ValueError("there are no means of K and V of each layer")
        return cls(layers)

    @classmethod
    def of_bytes(cls, text: bytes) -> Self:
        """Rebuild from `portable`. Raises ValueError."""
        try:
            return cls.of_arrays(load(text))
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError("no means in safetensors") from error

    @property
    def portable(self) -> bytes:
        """Safetensors for other machines; empty above `MOST_PORTABLE`."""
        found = save(self.arrays)
        return found if len(found) <= MOST_PORTABLE else b""

    def near(self, other: "Calibration") -> bool:
        pairs = zip(self.layers, other.layers, strict=False)
        return len(self.layers) == len(other.layers) and all(
            _near_means(a.k, b.k) and _near_means(a.v, b.v)
            and _near_bases(a.bases, b.bases)
            for a, b in pairs
        )  # fmt: skip

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {f"{name}.{i}": side for i, own in enumerate(self.layers) for name, side in own.arrays.items()}


def _near_means(a: Half, b: Half) -> bool:
    if a.shape != b.shape:
        return False
    largest = float(np.abs(b).max(initial=0))
    return bool(np.abs(a.astype(np.float32) - b.astype(np.float32)).max(initial=0) <= _NEAR * largest)


def _near_bases(a: tuple[Matrix, Matrix] | None, b: tuple[Matrix, Matrix] | None) -> bool:
    if a is None or b is None:
        return a is b
    return all(
        one.shape == other.shape and all(apart(*of) <= _APART for of in zip(one, other, strict=True))
        for one, other in zip(a, b, strict=True)
    )


def _basis(basis: Matrix, group_size: int, dtype: mx.Dtype, *, keys: bool) -> Basis:
    """Return E R, with ones for what fills groups."""
    heads, width, _ = basis.shape
    filled = np.tile(np.eye(width + -width % group_size), (heads, 1, 1))
    filled[:, :width, :width] = basis
    with one_blas_thread():
        turned = filled @ rotation.matrix(filled.shape[-1])
    return Basis.of(turned, dtype, keys=keys)


class Calibrations:
    """Files by model fingerprint. Any thread, except `of`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offered: dict[str, Calibration] = {}

    def offer(self, fingerprint: str, calibration: Calibration) -> None:
        """From elsewhere, so that KV from there fits; used only near the measured one."""
        if len(self._offered) < _MOST_OFFERED or fingerprint in self._offered:
            self._offered[fingerprint] = calibration

    def known(self, fingerprint: str, geometry: Geometry) -> Calibration | None:
        path = self._path(fingerprint)
        try:
            found = Calibration.of_arrays(load_file(path))
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError) as error:
            logs.event(log, "a calibration cannot be read", logging.WARNING, path=path, error=str(error))
            return None
        return found if found.fits(geometry) else None

    def knows(self, fingerprint: str, geometry: Geometry) -> bool:
        return not _is_centred(geometry) or self.known(fingerprint, geometry) is not None

    def of(self, fingerprint: str, geometry: Geometry, measure: Callable[[], Calibration]) -> Calibration | None:
        """Measured if unknown; None if the model needs none. Engine thread."""
        if not _is_centred(geometry):
            return None
        known = self.known(fingerprint, geometry)
        if known is None:
            known = measure()
            lost_device.confirm()
            offered = self._offered.pop(fingerprint, None)
            if offered is not None and offered.near(known):
                known = offered
            self.keep(fingerprint, known)
        return known

    def keep(self, fingerprint: str, calibration: Calibration) -> None:
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


def _is_centred(geometry: Geometry) -> bool:
    return geometry.format.scheme != PLAIN and bool(geometry.groups)
