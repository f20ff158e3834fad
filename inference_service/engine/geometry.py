"""The shape of a model's KV, taken from its first update, never from config fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from agentmem.kv.blockfile import BLOCK_TOKENS, TENSORS
from inference_service.engine.codec import KVCodec
from inference_service.engine.paged.sequence import SLACK
from inference_service.engine.quantization import BALANCED, KVFormat, bytes_per_element, last_axes

SAFETENSORS_DTYPE = {mx.uint32: "U32", mx.float32: "F32", mx.bfloat16: "BF16", mx.float16: "F16"}
MLX_DTYPE = {name: dtype for dtype, name in SAFETENSORS_DTYPE.items()}

HostTensors = Mapping[str, npt.NDArray[np.generic]]
"""KV [layers, kv_heads, tokens, width] and states; 16-bit floats as uint16."""

TensorBytes = Mapping[str, bytes | memoryview]

HostBuffers = dict[str, list[npt.NDArray[np.generic]]]
"""An array [kv_heads, tokens, width] per layer."""

TensorShapes = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class LayerGroup:
    """By index; `window` None is full attention."""

    layers: tuple[int, ...]
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None

    def __str__(self) -> str:
        """Part of fingerprints, so that it must not change: another field belongs here only where it is set."""
        k, v = self.k_dim, self.v_dim
        return f"LayerGroup(layers={self.layers}, kv_heads={self.kv_heads}, k_dim={k}, v_dim={v}, window={self.window})"


class StateArray(NamedTuple):
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * int(MLX_DTYPE[self.dtype].size)


@dataclass(frozen=True)
class StateGroup:
    layers: tuple[int, ...]
    arrays: tuple[tuple[StateArray, ...], ...]

    @property
    def shapes(self) -> TensorShapes:
        return {
            state_name(layer, i): (array.dtype, array.shape)
            for layer, arrays in zip(self.layers, self.arrays, strict=True)
            for i, array in enumerate(arrays)
        }

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for arrays in self.arrays for array in arrays)

    @property
    def counts(self) -> list[tuple[int, int]]:
        return [(layer, len(arrays)) for layer, arrays in zip(self.layers, self.arrays, strict=True)]


@dataclass(frozen=True)
class Geometry:
    """Layers are indices of caches. `full` is empty if all are recurrent; `also_full` has other shapes. `shows_arrays`:
    layers attend themselves (`paged.views`). `latents`: K is the latent, V the key's part with positions.
    """

    heads: int
    dtype: mx.Dtype
    format: KVFormat
    full: LayerGroup
    sliding: LayerGroup | None = None
    states: StateGroup | None = None
    shows_arrays: bool = False
    latents: bool = False
    also_full: tuple[LayerGroup, ...] = ()

    @property
    def layers(self) -> int:
        return len(self.kv_layers)

    @property
    def all_layers(self) -> int:
        return self.layers + (len(self.states.layers) if self.states else 0)

    @property
    def kv_layers(self) -> tuple[int, ...]:
        return tuple(sorted(layer for group in self.groups for layer in group.layers))

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Full attention first."""
        return self.full_groups if self.sliding is None else (*self.full_groups, self.sliding)

    @property
    def full_groups(self) -> tuple[LayerGroup, ...]:
        return (self.full, *self.also_full) if self.full.layers else ()

    def codecs(self) -> tuple[KVCodec, ...]:
        return tuple(map(KVCodec, self.formats))

    @property
    def formats(self) -> tuple[KVFormat, ...]:
        by_layer = {layer: self.format_of(group) for group in self.groups for layer in group.layers}
        return tuple(by_layer[layer] for layer in self.kv_layers)

    def format_of(self, group: LayerGroup) -> KVFormat:
        return self.format.of_windows if group.window else self.format

    def block_shapes(self, tokens: int) -> TensorShapes:
        return {name: shape for group in self.full_groups for name, shape in self.shapes(group, tokens).items()}

    def checkpoint_shapes(self, tokens: int) -> TensorShapes:
        """Raises ValueError for full attention alone."""
        if self.resumes_anywhere:
            raise ValueError("the model has only full attention, and no checkpoints")
        window = self.shapes(self.sliding, tokens) if self.sliding else {}
        return window | (self.states.shapes if self.states else {})

    def shapes(self, group: LayerGroup, tokens: int) -> TensorShapes:
        shapes: TensorShapes = {}
        prefix, format = self.prefix(group), self.format_of(group)
        for name in TENSORS:
            side, part = name.split(".")
            width, by = (group.k_dim, format.k) if side == "k" else (group.v_dim, format.v)
            dtype = SAFETENSORS_DTYPE[mx.uint32 if part == "weights" else self.dtype]
            shapes[prefix + name] = (dtype, (len(group.layers), group.kv_heads, tokens, last_axes(width, by)[part]))
        return shapes

    def prefix(self, group: LayerGroup) -> str:
        """ "", for `also_full` "1.", "2.", …"""
        return f"{self.also_full.index(group) + 1}." if group in self.also_full else ""

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("mlx.core.")

    @property
    def bytes_per_token(self) -> int:
        """Quantized, in full-attention layers."""
        return round(sum(map(self._token_bytes, self.full_groups)))

    @property
    def basis_bytes(self) -> int:
        """The matrices of K and V."""
        if self.format.scheme != BALANCED:
            return 0
        numbers = sum(len(g.layers) * g.kv_heads * (g.k_dim**2 + g.v_dim**2) for g in self.groups)
        return 2 * numbers * self.dtype.size

    @property
    def layer_bytes_per_token(self) -> int:
        return max(map(self._array_bytes, self.full_groups), default=0)

    def window_layer_bytes(self, new: int) -> int:
        """Unquantized, for `new` tokens."""
        return self._array_bytes(self.sliding) * (self.window + max(new, 2 * SLACK)) if self.sliding else 0

    def array_bytes(self, tokens: int) -> int:
        """Unquantized, of a sequence."""
        found = 0
        for group in self.groups:
            held = min(tokens, group.window + 2 * SLACK) if group.window else tokens
            found += len(group.layers) * held * self._array_bytes(group)
        return found

    @property
    def resumes_anywhere(self) -> bool:
        """True if blocks alone are enough."""
        return self.sliding is None and self.states is None

    @property
    def in_order(self) -> bool:
        """True if layers take tokens one after the other, and go on only from a checkpoint."""
        return self.states is not None

    @property
    def kinds(self) -> dict[str, str]:
        found = {"full": str(self.full), "sliding": str(self.sliding)}
        others = {"also_full": self.also_full, "states": self.states}
        return found | {kind: str(layers) for kind, layers in others.items() if layers}

    @property
    def window(self) -> int:
        """0 without sliding layers."""
        return (self.sliding.window or 0) if self.sliding else 0

    @property
    def checkpoint_bytes(self) -> int:
        """An agent has so many at any length."""
        return round(self._token_bytes(self.sliding) * (self.window + SLACK)) + self.state_bytes

    @property
    def state_bytes(self) -> int:
        return self.states.nbytes if self.states else 0

    @property
    def largest_state_bytes(self) -> int:
        return (
            max((sum(array.nbytes for array in each) for each in self.states.arrays), default=0) if self.states else 0
        )

    @property
    def piece_tokens(self) -> int:
        """The pool's unit of windows, a power of two."""
        return min(BLOCK_TOKENS, 1 << self.window.bit_length() - 1) if self.window else 0

    @property
    def checkpoint_pieces(self) -> int:
        """Windows may begin inside a piece; states have one."""
        window = -(-(self.window + SLACK) // self.piece_tokens) + 1 if self.window else 0
        return window + int(self.states is not None)

    @property
    def piece_bytes(self) -> int:
        """Though only a checkpoint's first has a state."""
        return round(self._token_bytes(self.sliding) * self.piece_tokens) + self.state_bytes

    def _array_bytes(self, group: LayerGroup) -> int:
        return group.kv_heads * (group.k_dim + group.v_dim) * int(self.dtype.size)

    def _token_bytes(self, group: LayerGroup | None) -> float:
        if group is None:
            return 0.0
        format = self.format_of(group)
        sides = ((group.k_dim, format.k), (group.v_dim, format.v))
        return len(group.layers) * group.kv_heads * sum(dim * bytes_per_element(self.dtype, by) for dim, by in sides)


def state_name(layer: int, array: int) -> str:
    return f"state.{layer}.{array}"
