"""Quantized tensors, and growing buffers of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import mlx.core as mx

STEP = 256
"""Buffers grow by this many tokens."""


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

    @property
    def tokens(self) -> int:
        """Length of the token axis."""
        return int(self.weights.shape[2])

    def map(self, function: Callable[[mx.array], mx.array]) -> "Quantized":
        """`function` applied to each of the three."""
        return Quantized(*(function(part) for part in self))

    def between(self, start: int, stop: int) -> "Quantized":
        """A view of tokens `start` to `stop`."""
        return self.map(lambda part: part[..., start:stop, :])

    def followed_by(self, *others: "Quantized") -> "Quantized":
        """One after the other along the token axis."""
        return Quantized(*(mx.concatenate(list(parts), axis=2) for parts in zip(self, *others, strict=True)))

    def blank(self, tokens: int, rows: int | None = None) -> "Quantized":
        """Zeros of the same shape but for the number of tokens, and of rows if it is given."""

        def zeros(part: mx.array) -> mx.array:
            own, heads, _, width = part.shape
            return mx.zeros((own if rows is None else rows, heads, tokens, width), dtype=part.dtype)

        return self.map(zeros)


class KVBuffers:
    """K and V of some rows, [rows, kv_heads, capacity, width], of which the first `filled` tokens count.

    What lies behind is garbage. Views must not outlive the step that asked for them: a write under a live view copies
    the whole buffer. Engine thread only.
    """

    def __init__(self, keys: Quantized | None = None, values: Quantized | None = None, filled: int = 0) -> None:
        self.keys = keys
        self.values = values
        self.filled = filled

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, garbage included."""
        return sum(part.nbytes for part in (self.keys, self.values) if part is not None)

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, for `mx.eval`."""
        return [array for part in (self.keys, self.values) if part is not None for array in part]

    def both(self) -> tuple[Quantized, Quantized]:
        """K and V; there must be some."""
        if self.keys is None or self.values is None:
            raise ValueError("nothing was written to this cache")
        return self.keys, self.values

    def view(self, start: int = 0) -> tuple[Quantized, Quantized]:
        """K and V from token `start` on."""
        keys, values = self.both()
        return keys.between(start, self.filled), values.between(start, self.filled)

    def append(self, keys: Quantized, values: Quantized) -> None:
        """Write tokens behind the last one; the buffers grow by steps."""
        end = self.filled + keys.tokens
        self.keys = self._write(self.keys, keys, end)
        self.values = self._write(self.values, values, end)
        self.filled = end

    def map(self, function: Callable[[Quantized], Quantized], filled: int) -> "KVBuffers":
        """`function` applied to K and V."""
        keys, values = self.both()
        return KVBuffers(function(keys), function(values), filled)

    def shared(self) -> "KVBuffers":
        """The same tokens under other handles: whoever writes while both are alive writes to a copy of its own."""
        return self.map(lambda part: part.map(lambda a: a[...]), self.filled)

    def rows(self, indices: Sequence[int]) -> "KVBuffers":
        """A copy of some rows, in that order."""
        wanted = mx.array(list(indices))
        return self.map(lambda part: part.map(lambda a: a[wanted]), self.filled)

    def row(self, index: int, start: int) -> "KVBuffers":
        """One row from token `start` on, copied; shared where that is all there is."""
        end = self.filled
        if not start and self.both()[0].weights.shape[0] == 1:
            return self.shared()
        return self.map(lambda part: part.map(lambda a: mx.contiguous(a[index : index + 1, :, start:end])), end - start)

    def last(self, tokens: int) -> "KVBuffers":
        """A copy of the last tokens."""
        start, end = self.filled - tokens, self.filled
        return self.map(lambda part: part.map(lambda a: mx.contiguous(a[..., start:end, :])), tokens)

    @staticmethod
    def stacked(buffers: Iterable["KVBuffers"]) -> "KVBuffers":
        """Rows one under the other, copied: zeros before the shorter ones, so that all end at the same token, and room
        for the next one. None may be empty."""
        several = list(buffers)
        filled = max(each.filled for each in several)
        sides = zip(*(each.view() for each in several), strict=True)
        keys, values = (_right_aligned(side, filled, _capacity(filled + 1)) for side in sides)
        return KVBuffers(keys, values, filled)

    def _write(self, buffer: Quantized | None, new: Quantized, end: int) -> Quantized:
        capacity = _capacity(end)
        if buffer is None:
            buffer = new.blank(capacity)
        elif end > buffer.tokens:
            buffer = buffer.between(0, self.filled).followed_by(new.blank(capacity - self.filled))
        for old, part in zip(buffer, new, strict=True):
            old[..., self.filled : end, :] = part
        return buffer


def _capacity(tokens: int) -> int:
    """Of a buffer for so many."""
    return -(-tokens // STEP) * STEP


def _right_aligned(parts: Sequence[Quantized], end: int, capacity: int) -> Quantized:
    """Rows of all parts in one array, each part up to token `end`."""
    into = parts[0].blank(capacity, rows=sum(part.weights.shape[0] for part in parts))
    first = 0
    for part in parts:
        last = first + part.weights.shape[0]
        for whole, rows_of_it in zip(into, part, strict=True):
            whole[first:last, :, end - part.tokens : end] = rows_of_it
        first = last
    return into


class BufferedCache:
    """What all Q4 caches have in common. mlx-lm asks for these. Engine thread only."""

    def __init__(self, bits: int, group_size: int) -> None:
        self.bits = bits
        self.group_size = group_size
        self.buffers = KVBuffers()
        self.value_width = 0
        """Elements of the values that were written last, without what fills up a group."""

    def quantized(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim], quantized as this cache keeps them."""
        self.value_width = int(values.shape[-1])
        return quantize(keys, self.bits, self.group_size), quantize(values, self.bits, self.group_size)

    def size(self) -> int:
        """Tokens stored, padding included."""
        return self.buffers.filled

    def empty(self) -> bool:
        """Nothing was ever written."""
        return self.buffers.keys is None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, garbage and padding included."""
        return self.buffers.nbytes

    @property
    def state(self) -> list[mx.array]:
        """The arrays, for `mx.eval`."""
        return self.buffers.arrays


def quantize(x: mx.array, bits: int, group_size: int) -> Quantized:
    """Quantize along the last axis, filled up with zeros to whole groups: heads of 80 elements take those of 96.

    Zeros in keys add nothing to a score; what stands for them in values is cut off (`BufferedCache.value_width`).
    """
    if missing := -x.shape[-1] % group_size:
        x = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    return Quantized(*mx.quantize(x, group_size=group_size, bits=bits))
