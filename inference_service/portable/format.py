"""The portable file: what it says, and where its tensors are. Pure, without MLX arrays.

The file is safetensors: 8 bytes with the header's length, the header as JSON, and the tensors' bytes. Per layer L of
the model there are `layer_{L}_k_weights` (uint32), `layer_{L}_k_scales` and `layer_{L}_k_biases` (in the model's
dtype), and the same for `v`, shaped [1, tokens, kv_heads, width]; with 4 bits in groups of 64, width is dim/8 and
dim/64. Bits of K and V may differ.

All layers end at `kv_tokens`. Layers with full attention begin at 0, those with a sliding window where the window that
was kept begins; so each layer's tokens are those from its first position up to `kv_tokens`. The ledger is always whole:
what is behind `kv_tokens` is computed again from its tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from agentmem.blockfile import TENSORS
from agentmem.errors import DataLoss
from agentmem.identity import Ledger
from agentmem.kv_bits import KVBits
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.calibration import Calibration
from inference_service.engine.geometry import SAFETENSORS_DTYPE, Geometry

FORMAT = "agentmem.agent"
FORMAT_VERSION = 2
"""Files of version 1 name no model and have no calibration; they are read, and never written."""
SLACK = 256
"""Tokens that a sliding layer may keep beyond its window; see engine.caches.sliding."""

DTYPE_BYTES = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}


_Dim = Annotated[int, Field(strict=True, gt=0, le=1 << 20)]


def _described(bits: KVBits) -> int | str:
    """Bits in a file: 4, or "5/4" where those of K and V differ."""
    return bits.k if bits.k == bits.v else str(bits)


def _as_described(bits: int | str) -> int | str:
    if bits != _described(KVBits.parse(str(bits))):
        raise ValueError("bits that are written otherwise")
    return bits


class LayerShape(NamedTuple):
    """The KV of one layer. `window` is None for full attention."""

    kv_heads: _Dim
    k_dim: _Dim
    v_dim: _Dim
    window: Annotated[int, Field(strict=True, gt=0, lt=1 << 32)] | None = None


@dataclass(frozen=True)
class KVGeometry:
    """The KV of all layers that have some, in the model's order.

    `dtype` is that of scales and biases, as safetensors calls it. `bits` are those of K and V, or "5/4" where they
    differ.
    """

    dtype: Annotated[str, Field(pattern="^(F32|F16|BF16)$")]
    bits: Annotated[StrictInt | StrictStr, AfterValidator(_as_described)]
    group_size: Annotated[int, Field(strict=True, ge=32, le=64, multiple_of=32)]
    layers: Annotated[tuple[LayerShape, ...], Field(min_length=1, max_length=4096)]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the geometry that this says. Raises ValueError, which pydantic's ValidationError is."""
        return TypeAdapter(cls).validate_json(text)

    def width(self, layer: int, part: str) -> int:
        """Return the elements per token and head of one part ("k.weights", …) of a layer."""
        shape, bits = self.layers[layer], KVBits.parse(str(self.bits))
        dim, by = (shape.k_dim, bits.k) if part.startswith("k") else (shape.v_dim, bits.v)
        return dim * by // 32 if part.endswith("weights") else dim // self.group_size


class TensorPlace(NamedTuple):
    """One tensor: safetensors' dtype, shape, its first token's position, and its bytes, counted behind the header."""

    dtype: str
    shape: tuple[int, int, int, int]
    first_position: int
    start: int
    end: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return (self.end - self.start) // self.shape[1]


@dataclass(frozen=True)
class Manifest:
    """All that the header says, but the checksums. `first_positions` has one position per layer, none without KV.

    `fingerprint` is that of the KV, `model_fingerprint` of the model's files; that is empty in files of version 1.
    `calibration` is the means that K and V are centred on, as safetensors; empty where they are not centred.
    """

    key: AgentKey
    fingerprint: str
    geometry: KVGeometry
    ledger: Ledger
    kv_tokens: int
    first_positions: tuple[int, ...]
    context_policy: types_pb2.ContextPolicy.ValueType = types_pb2.CONTEXT_POLICY_UNSPECIFIED
    model_fingerprint: str = ""
    calibration: bytes = b""

    @cached_property
    def places(self) -> Mapping[str, TensorPlace]:
        """Where each tensor is."""
        return places(self.geometry, self.kv_tokens, self.first_positions)

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return max((place.end for place in self.places.values()), default=0)


def damaged(problem: str) -> DataLoss:
    """Return the error for a file that is not as it was exported."""
    return DataLoss(f"the file is damaged: {problem}; export the agent again")


def tensor_name(layer: int, part: str) -> str:
    """Return the name of a layer's tensor; `part` is one of blockfile.TENSORS."""
    return f"layer_{layer}_{part.replace('.', '_')}"


def places(geometry: KVGeometry, kv_tokens: int, first_positions: Sequence[int]) -> dict[str, TensorPlace]:
    """Return where the tensors are: gapless, weights of all layers first, so that none is out of alignment."""
    found: dict[str, TensorPlace] = {}
    start = 0
    for weights in (True, False):
        for layer, first in enumerate(first_positions):
            for part in TENSORS:
                if part.endswith("weights") is weights:
                    shape = (1, kv_tokens - first, geometry.layers[layer].kv_heads, geometry.width(layer, part))
                    dtype = "U32" if weights else geometry.dtype
                    end = start + prod(shape) * DTYPE_BYTES[dtype]
                    found[tensor_name(layer, part)] = TensorPlace(dtype, shape, first, start, end)
                    start = end
    return found


def kv_geometry(geometry: Geometry) -> KVGeometry:
    """Return a loaded model's KV as a portable file describes it."""
    layers = {}
    for group in geometry.groups:
        shape = LayerShape(group.kv_heads, group.k_dim, group.v_dim, group.window)
        layers.update(dict.fromkeys(group.layers, shape))
    shapes = tuple(layers[layer] for layer in geometry.kv_layers)
    by = geometry.format
    return KVGeometry(
        SAFETENSORS_DTYPE[geometry.dtype], _described(KVBits(by.k_bits, by.v_bits)), by.group_size, shapes
    )


def layers_of(geometry: Geometry, *, window: bool) -> tuple[int, ...]:
    """Return the layers whose KV is in windows, or those whose KV is in blocks."""
    group = geometry.sliding if window else geometry.full
    return group.layers if group is not None else ()


def check(manifest: Manifest) -> None:
    """Raise DataLoss unless the parts of a manifest agree with each other, and no place is absurd."""
    try:
        if manifest.calibration:
            Calibration.of_bytes(manifest.calibration)
    except ValueError as error:
        raise damaged("its calibration is not that of a model") from error
    ledger, geometry, firsts = manifest.ledger, manifest.geometry, manifest.first_positions
    offsets = np.array(ledger.offsets, np.int64)
    if len(offsets) != len(ledger) or (np.diff(offsets) < 0).any():
        raise damaged("offsets do not belong to the tokens")
    if (offsets[-1] if len(offsets) else 0) != len(ledger.text):
        raise damaged("offsets do not belong to the text")
    end = 0
    for turn in ledger.turns:
        if not end <= turn.end_token <= len(ledger) or not 0 <= turn.generated_tokens <= turn.end_token - end:
            raise damaged("turns do not belong to the tokens")
        end = turn.end_token
    if not 0 <= manifest.kv_tokens <= len(ledger):
        raise damaged("it has KV of more tokens than there are")
    try:
        TypeAdapter(KVGeometry).validate_python(vars(geometry))
    except ValidationError as error:
        raise damaged("its KV has a strange geometry") from error
    if any(dim % geometry.group_size for _, *dims, _ in geometry.layers for dim in dims):
        raise damaged("a layer of a strange width")
    if len(firsts) != (len(geometry.layers) if manifest.kv_tokens else 0):
        raise damaged("first positions do not belong to the layers")
    for shape, first in zip(geometry.layers, firsts, strict=False):
        if not 0 <= first <= (max(0, manifest.kv_tokens - shape.window) if shape.window else 0):
            raise damaged("a layer lacks tokens that the next one may see")
        if shape.window and manifest.kv_tokens - first > shape.window + SLACK:
            raise damaged("a layer has more tokens than it keeps")
    if len({first for shape, first in zip(geometry.layers, firsts, strict=False) if shape.window}) > 1:
        raise damaged("windows do not begin at one position")
