"""The portable file: what it says, and where its tensors are. Pure, without MLX arrays.

The file is safetensors: 8 bytes with the header's length, the header as JSON, and the tensors' bytes. Per layer L of
the model there are `layer_{L}_k_weights` (uint32), `layer_{L}_k_scales` and `layer_{L}_k_biases` (in the model's
dtype), and the same for `v`, shaped [1, tokens, kv_heads, width]; with 4 bits in groups of 64, width is dim/8 and
dim/64. Bits of K and V may differ. Layers are counted among those that have KV.

Recurrent layers have a state instead: `state_{S}_{i}` is array i of the S-th of them, [1, …], in its own dtype.

All layers end at `kv_tokens`. Layers with full attention begin at 0, those with a sliding window where the window that
was kept begins; so each layer's tokens are those from its first position up to `kv_tokens`. States are those behind
exactly `kv_tokens` tokens. The ledger is always whole: what is behind `kv_tokens` is computed again from its tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from agentmem.errors import DataLoss
from agentmem.kv.bits import KVBits
from agentmem.kv.blockfile import TENSORS
from agentmem.kv.ledger import Ledger
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.calibration import Calibration
from inference_service.engine.geometry import SAFETENSORS_DTYPE, Geometry, state_name

FORMAT = "agentmem.agent"
FORMAT_VERSION = 3
"""Version 3 has recurrent layers' states, and is written where there are some; else version 2 is, which has none. Files
of version 1 name no model and have no calibration; they are read, and never written.
"""
SLACK = 256
"""Tokens that a sliding layer may keep beyond its window; see engine.paged.sequence."""

DTYPE_BYTES = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}


_Dim = Annotated[int, Field(strict=True, gt=0, le=1 << 20)]


def _described(bits: KVBits) -> int | str:
    """Bits in a file: 4, or as text where they are not the same everywhere."""
    return bits.k if str(bits) == str(bits.k) else str(bits)


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


class StateShape(NamedTuple):
    """An array of a recurrent layer's state: safetensors' name of its dtype, and its shape without the axis of rows."""

    dtype: Annotated[str, Field(pattern=f"^({'|'.join(DTYPE_BYTES)})$")]
    shape: Annotated[tuple[_Dim, ...], Field(max_length=8)]


_Arrays = Annotated[tuple[StateShape, ...], Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class KVGeometry:
    """The KV of all layers that have some, in the model's order, and the states of those that are recurrent.

    `dtype` is that of scales and biases, as safetensors calls it. `bits` are those of K and V: a number, or as text
    where they differ ("5/4", "4w6").
    """

    dtype: Annotated[str, Field(pattern="^(F32|F16|BF16)$")]
    bits: Annotated[StrictInt | StrictStr, AfterValidator(_as_described)]
    group_size: Annotated[int, Field(strict=True, ge=32, le=64, multiple_of=32)]
    layers: Annotated[tuple[LayerShape, ...], Field(max_length=4096)]
    states: Annotated[tuple[_Arrays, ...], Field(max_length=4096)] = ()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the geometry that this says. Raises ValueError, which pydantic's ValidationError is."""
        return TypeAdapter(cls).validate_json(text)

    def width(self, layer: int, part: str) -> int:
        """Return the elements per token and head of one part ("k.weights", …) of a layer."""
        shape, bits = self.layers[layer], KVBits.parse(str(self.bits))
        k, v = bits.of_windows if shape.window else bits[:2]
        dim, by = (shape.k_dim, k) if part.startswith("k") else (shape.v_dim, v)
        return dim * by // 32 if part.endswith("weights") else dim // self.group_size


class TensorPlace(NamedTuple):
    """One tensor: safetensors' dtype, shape, its first token's position, and its bytes, counted behind the header.

    A state's first position is 0.
    """

    dtype: str
    shape: tuple[int, ...]
    first_position: int
    start: int
    end: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token of KV."""
        return (self.end - self.start) // self.shape[1]


@dataclass(frozen=True)
class Manifest:
    """All that the header says, but the checksums. `first_positions` has one position per layer, none without KV.

    `state_position` is how many tokens went into the recurrent layers' states; 0 where there are none.
    `fingerprint` is that of the KV, `model_fingerprint` of the model's files; that is empty in files of version 1.
    `calibration` is means and bases of K and V, as safetensors; empty where they are not centred.
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
    state_position: int = 0

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


def state_tensor(layer: int, array: int) -> str:
    """Return the name of an array of a recurrent layer's state; both are counted from 0."""
    return f"state_{layer}_{array}"


def places(geometry: KVGeometry, kv_tokens: int, first_positions: Sequence[int]) -> dict[str, TensorPlace]:
    """Return where the tensors are: gapless, those with the largest elements first, so that none is out of alignment.

    Of one size, weights of all layers come first, and states last.
    """
    tensors: list[tuple[str, str, tuple[int, ...], int]] = []
    for weights in (True, False):
        for layer, first in enumerate(first_positions):
            for part in TENSORS:
                if part.endswith("weights") is weights:
                    shape = (1, kv_tokens - first, geometry.layers[layer].kv_heads, geometry.width(layer, part))
                    tensors.append((tensor_name(layer, part), "U32" if weights else geometry.dtype, shape, first))
    for layer, arrays in enumerate(geometry.states if kv_tokens else ()):
        tensors += [(state_tensor(layer, i), array.dtype, (1, *array.shape), 0) for i, array in enumerate(arrays)]
    found: dict[str, TensorPlace] = {}
    start = 0
    for name, dtype, axes, first in sorted(tensors, key=lambda tensor: -DTYPE_BYTES[tensor[1]]):
        end = start + prod(axes) * DTYPE_BYTES[dtype]
        found[name] = TensorPlace(dtype, axes, first, start, end)
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
    bits, dtype = _described(by.bits), SAFETENSORS_DTYPE[geometry.dtype]
    states = geometry.states.arrays if geometry.states else ()
    described = tuple(tuple(StateShape(array.dtype, array.shape) for array in arrays) for arrays in states)
    return KVGeometry(dtype, bits, by.group_size, shapes, described)


def layers_of(geometry: Geometry, *, window: bool) -> dict[str, tuple[int, ...]]:
    """Return the layers whose KV is in windows, or those whose KV is in blocks; counted among all that have KV.

    They are by what the names of their tensors begin with in such a file.
    """
    groups = geometry.full_groups if not window else filter(None, [geometry.sliding])
    return {
        geometry.prefix(group): tuple(n for n, layer in enumerate(geometry.kv_layers) if layer in group.layers)
        for group in groups
    }


def state_tensors(geometry: Geometry) -> dict[str, str]:
    """Return what the arrays of states are called here, by their names in files of checkpoints."""
    states = geometry.states
    layers = zip(states.layers, states.arrays, strict=True) if states else ()
    return {
        state_name(layer, array): state_tensor(number, array)
        for number, (layer, arrays) in enumerate(layers)
        for array in range(len(arrays))
    }


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
    if manifest.kv_tokens and not geometry.layers and not geometry.states:
        raise damaged("its KV has no layers")
    if any(dim % geometry.group_size for _, *dims, _ in geometry.layers for dim in dims):
        raise damaged("a layer of a strange width")
    if len(firsts) != (len(geometry.layers) if manifest.kv_tokens else 0):
        raise damaged("first positions do not belong to the layers")
    if manifest.state_position != (manifest.kv_tokens if geometry.states else 0):
        states = f"its recurrent layers' states are those of position {manifest.state_position}"
        raise damaged(f"{states}, and its KV ends at {manifest.kv_tokens}")
    if geometry.states and not manifest.kv_tokens:
        raise damaged("it has states of recurrent layers, and no KV")
    for shape, first in zip(geometry.layers, firsts, strict=False):
        if not 0 <= first <= (max(0, manifest.kv_tokens - shape.window) if shape.window else 0):
            raise damaged("a layer lacks tokens that the next one may see")
        if shape.window and manifest.kv_tokens - first > shape.window + SLACK:
            raise damaged("a layer has more tokens than it keeps")
    if len({first for shape, first in zip(geometry.layers, firsts, strict=False) if shape.window}) > 1:
        raise damaged("windows do not begin at one position")
