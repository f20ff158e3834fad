"""The Q4 cache of one sequence: K and V are quantized the moment they are computed.

Follows mlx-lm's cache protocol (`update_and_fetch`, `make_mask`, `trim`, `offset`), so its models use it unchanged.
"""

from typing import Any, NamedTuple, Self

import mlx.core as mx


class Quantized(NamedTuple):
    """A tensor quantized by MLX's affine scheme along its last axis.

    `weights` uint32 [..., width * bits / 32]; `scales` and `biases` [..., width / group_size] in the compute dtype.
    """

    weights: mx.array
    scales: mx.array
    biases: mx.array

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return sum(int(part.nbytes) for part in self)

    def map(self, function: Any) -> "Quantized":
        """`function` applied to each of the three."""
        return Quantized(*(function(part) for part in self))


class QuantizedKVCache:
    """One layer's K and V of one sequence, in stepped buffers [1, kv_heads, capacity, width].

    `offset` counts the tokens that count; what lies behind it in the buffers is garbage. Engine thread only.
    """

    step = 256

    def __init__(self, bits: int = 4, group_size: int = 64) -> None:
        self.bits = bits
        self.group_size = group_size
        self.offset = 0
        self.keys: Quantized | None = None
        self.values: Quantized | None = None

    @classmethod
    def restored(cls, keys: Quantized, values: Quantized, offset: int, bits: int, group_size: int) -> Self:
        """A cache over buffers that hold `offset` tokens."""
        cache = cls(bits, group_size)
        cache.keys, cache.values, cache.offset = keys, values, offset
        return cache

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Append K [1, kv_heads, n, k_dim] and V [1, kv_heads, n, v_dim]; all of both, quantized, lazily.

        The result is a view of the buffers: it must not outlive the step that asked for it.
        """
        start, end = self.offset, self.offset + keys.shape[2]
        self.keys = self._write(self.keys, self._quantize(keys), start, end)
        self.values = self._write(self.values, self._quantize(values), start, end)
        self.offset = end
        return self.keys.map(lambda part: part[..., :end, :]), self.values.map(lambda part: part[..., :end, :])

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> str | None:
        """The mask for `n` queries: none is needed for one, and the fused kernel knows "causal"."""
        if window_size is not None or return_array:
            raise NotImplementedError("a full-attention cache has no windowed or explicit mask")
        return None if n == 1 else "causal"

    def is_trimmable(self) -> bool:
        """Always."""
        return True

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens (at most all); how many were forgotten."""
        n = min(n, self.offset)
        self.offset -= n
        return n

    def size(self) -> int:
        """Tokens."""
        return self.offset

    def empty(self) -> bool:
        """Nothing was ever written."""
        return self.keys is None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(part.nbytes for part in (self.keys, self.values) if part is not None)

    @property
    def state(self) -> list[mx.array]:
        """The arrays, for `mx.eval`."""
        return [array for part in (self.keys, self.values) if part is not None for array in part]

    def _quantize(self, x: mx.array) -> Quantized:
        return Quantized(*mx.quantize(x, group_size=self.group_size, bits=self.bits))

    def _write(self, buffer: Quantized | None, new: Quantized, start: int, end: int) -> Quantized:
        if buffer is None:
            buffer = new.map(lambda part: _zeros(part, self._capacity(end)))
        elif end > buffer.weights.shape[2]:
            more = self._capacity(end) - start
            buffer = Quantized(
                *(
                    mx.concatenate([old[..., :start, :], _zeros(part, more)], axis=2)
                    for old, part in zip(buffer, new, strict=True)
                )
            )
        for old, part in zip(buffer, new, strict=True):
            old[..., start:end, :] = part
        return buffer

    def _capacity(self, tokens: int) -> int:
        return -(-tokens // self.step) * self.step


def _zeros(like: mx.array, tokens: int) -> mx.array:
    return mx.zeros((*like.shape[:2], tokens, like.shape[3]), dtype=like.dtype)
