"""The shape of a model's KV, taken from its first update and never from guessed config fields."""

from dataclasses import dataclass

import mlx.core as mx

from agentmem.blockfile import TENSORS

SAFETENSORS_DTYPE = {mx.uint32: "U32", mx.float32: "F32", mx.bfloat16: "BF16", mx.float16: "F16"}


@dataclass(frozen=True)
class Geometry:
    """Layers of one shape: query heads, KV heads, widths of K and V (which may differ), dtype and quantization."""

    layers: int
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: mx.Dtype
    bits: int
    group_size: int

    def tensor_shapes(self, tokens: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Safetensors dtype and shape of each tensor of a block file that holds `tokens` tokens."""
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name in TENSORS:
            side, part = name.split(".")
            width = self.k_dim if side == "k" else self.v_dim
            size = width * self.bits // 32 if part == "weights" else width // self.group_size
            dtype = SAFETENSORS_DTYPE[mx.uint32 if part == "weights" else self.dtype]
            shapes[name] = (dtype, (self.layers, self.kv_heads, tokens, size))
        return shapes

    @property
    def bytes_per_token(self) -> int:
        """Bytes of quantized KV per token, all layers."""
        per_element = self.bits / 8 + 2 * self.dtype.size / self.group_size
        return round(self.layers * self.kv_heads * (self.k_dim + self.v_dim) * per_element)

    @property
    def fp16_bytes_per_token(self) -> int:
        """What the same KV would take unquantized in 16 bits."""
        return self.layers * self.kv_heads * (self.k_dim + self.v_dim) * 2
