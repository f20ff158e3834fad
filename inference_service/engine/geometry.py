"""The shape of a model's KV, taken from its first update and never from guessed config fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from agentmem.blockfile import BLOCK_TOKENS, TENSORS
from inference_service.engine.caches import QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.caches.sliding import SLACK
from inference_service.engine.codec import KVCodec
from inference_service.engine.quantization import KVFormat, bytes_per_element, last_axes, width_of

SAFETENSORS_DTYPE = {mx.uint32: "U32", mx.float32: "F32", mx.bfloat16: "BF16", mx.float16: "F16"}

Caches = list[QuantizedKVCache | SlidingQuantizedKVCache]
"""One cache per layer, of one sequence."""

HostTensors = Mapping[str, npt.NDArray[np.generic]]
"""The six tensors of a file by name, [layers, kv_heads, tokens, width]; 16-bit floats as uint16."""

TensorShapes = dict[str, tuple[str, tuple[int, ...]]]
"""Safetensors dtype and shape of each tensor of a file, by name."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers whose KV has one shape, by their indices in the model. Widths of K and V may differ (MLA).

    `window` is None for full attention.
    """

    layers: tuple[int, ...]
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None


@dataclass(frozen=True)
class Geometry:
    """All layers of a model: those with full attention, those with a sliding window, and how both are quantized."""

    heads: int
    dtype: mx.Dtype
    format: KVFormat
    full: LayerGroup
    sliding: LayerGroup | None = None

    @property
    def layers(self) -> int:
        """Layers with KV."""
        return sum(len(group.layers) for group in self.groups)

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """The layer groups that the model has, full attention first."""
        return (self.full,) if self.sliding is None else (self.full, self.sliding)

    def new_caches(self, codecs: Sequence[KVCodec] = ()) -> Caches:
        """Empty caches, one per layer, each with its layer's codec; without `codecs` K and V are not centred."""
        each = codecs or self.codecs()
        caches = {layer: new_cache(group, each[layer]) for group in self.groups for layer in group.layers}
        return [caches[layer] for layer in range(self.layers)]

    def codecs(self) -> tuple[KVCodec, ...]:
        """Each layer's codec, of K and V that are not centred."""
        return (KVCodec(self.format),) * self.layers

    def block_shapes(self, tokens: int) -> TensorShapes:
        """The tensors of a block file: all full-attention layers."""
        return self.shapes(self.full, tokens)

    def window_shapes(self, tokens: int) -> TensorShapes:
        """The tensors of a window file: all sliding layers."""
        if self.sliding is None:
            raise ValueError("the model has no sliding layers")
        return self.shapes(self.sliding, tokens)

    def shapes(self, group: LayerGroup, tokens: int) -> TensorShapes:
        """The six tensors of `tokens` tokens of one layer group."""
        shapes: TensorShapes = {}
        for name in TENSORS:
            side, part = name.split(".")
            width, by = (group.k_dim, self.format.k) if side == "k" else (group.v_dim, self.format.v)
            dtype = SAFETENSORS_DTYPE[mx.uint32 if part == "weights" else self.dtype]
            shapes[name] = (dtype, (len(group.layers), group.kv_heads, tokens, last_axes(width, by)[part]))
        return shapes

    @property
    def dtype_name(self) -> str:
        """The compute dtype in words that are not MLX's own: "bfloat16"."""
        return str(self.dtype).removeprefix("mlx.core.")

    @property
    def bytes_per_token(self) -> int:
        """Bytes of quantized KV per token, full-attention layers."""
        return round(self._token_bytes(self.full))

    @property
    def window(self) -> int:
        """Tokens that sliding layers see; 0 without such layers."""
        return (self.sliding.window or 0) if self.sliding else 0

    @property
    def window_bytes(self) -> int:
        """Bytes of quantized KV of all sliding layers at their cap of window + 256 tokens."""
        return round(self._token_bytes(self.sliding) * (self.window + SLACK))

    @property
    def piece_tokens(self) -> int:
        """Tokens in a piece of a window, the unit in which the pool keeps windows; 0 without sliding layers."""
        return min(BLOCK_TOKENS, self.window)

    @property
    def window_pieces(self) -> int:
        """Pieces that a window of window + 256 tokens takes."""
        return -(-(self.window + SLACK) // self.piece_tokens) if self.window else 0

    @property
    def piece_bytes(self) -> int:
        """Bytes of a piece of a window."""
        return round(self._token_bytes(self.sliding) * self.piece_tokens)

    def _token_bytes(self, group: LayerGroup | None) -> float:
        """Bytes of a token's KV in all layers of a group."""
        if group is None:
            return 0.0
        sides = ((group.k_dim, self.format.k), (group.v_dim, self.format.v))
        return len(group.layers) * group.kv_heads * sum(dim * bytes_per_element(self.dtype, by) for dim, by in sides)


def new_cache(group: LayerGroup, codec: KVCodec) -> QuantizedKVCache | SlidingQuantizedKVCache:
    """An empty cache of a layer of a group."""
    return QuantizedKVCache(codec) if group.window is None else SlidingQuantizedKVCache(group.window, codec)


def merged(caches: Sequence[Any]) -> list[Any]:
    """A batch of one row, per layer: each layer's cache merged by its own kind."""
    return [type(cache).merge([cache]) for cache in caches]


def group_layers(caches: Sequence[QuantizedKVCache | SlidingQuantizedKVCache]) -> tuple[LayerGroup, LayerGroup | None]:
    """The layer groups of a model, from caches that hold its first update.

    Raises ValueError, saying what differs, for a model whose layers of one kind are not of one shape, or that has no
    full-attention layer.
    """
    groups = []
    for kind in (QuantizedKVCache, SlidingQuantizedKVCache):
        layers = tuple(i for i, cache in enumerate(caches) if type(cache) is kind)
        shapes = {_shape(caches[layer]) for layer in layers}
        if len(shapes) > 1:
            raise ValueError(f"layers of one kind have different KV shapes: {sorted(shapes, key=str)}")
        groups.append(LayerGroup(layers, *shapes.pop()) if layers else None)
    if groups[0] is None:
        raise ValueError("no layer has full attention")
    return groups[0], groups[1]


def _shape(cache: QuantizedKVCache | SlidingQuantizedKVCache) -> tuple[int, int, int, int | None]:
    keys, values = cache.buffers.both()
    window = cache.window if isinstance(cache, SlidingQuantizedKVCache) else None
    by = cache.codec.format
    return int(keys.weights.shape[1]), width_of(keys, by.k), width_of(values, by.v), window
