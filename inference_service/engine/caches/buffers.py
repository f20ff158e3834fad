"""Growing buffers of quantized K and V, and what all caches over them have in common."""

from collections.abc import Callable, Iterable, Sequence
from typing import Self

import mlx.core as mx

from inference_service.engine.codec import KVCodec
from inference_service.engine.quantization import Quantized

STEP = 256
"""Buffers grow by this many tokens."""


class KVBuffers:
    """K and V of some rows, [rows, kv_heads, capacity, width], of which the first `filled` tokens count.

    What lies behind is garbage. Views must not outlive the step that asked for them: a write under a live view copies
    the whole buffer. Engine thread only.

    A compiled step may write a token into the arrays themselves (`in_place`), of which MLX knows nothing. So the arrays
    must not be shared when that begins (`owned`); each such write takes as input what the one before returned; and the
    last one is computed before anything else reads the arrays. They may be shared later, because only what lies behind
    the last token is written.
    """

    def __init__(
        self, keys: Quantized | None = None, values: Quantized | None = None, filled: int = 0, *, owned: bool = False
    ) -> None:
        self.keys = keys
        self.values = values
        self.filled = filled
        self.owned = owned
        """Whether these arrays were made for these buffers alone, and shared memory with no others then."""
        self._end: tuple[int, mx.array] | None = None
        """After the last write in place: how many tokens there are, and the same as an array, int32 [1], whose
        computation is the write."""

    @staticmethod
    def of(arrays: Sequence[mx.array], filled: int) -> "KVBuffers":
        """Of the six arrays that `arrays` returns."""
        return KVBuffers(Quantized(*arrays[:3]), Quantized(*arrays[3:]), filled)

    @property
    def capacity(self) -> int:
        """Tokens that there is room for."""
        return 0 if self.keys is None else self.keys.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, garbage included."""
        return sum(part.nbytes for part in (self.keys, self.values) if part is not None)

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, for `mx.eval`."""
        return [] if self.keys is None else [array for part in self.both() for array in part]

    def both(self) -> tuple[Quantized, Quantized]:
        """K and V; there must be some."""
        if self.keys is None or self.values is None:
            raise ValueError("nothing was written to this cache")
        if self._end is not None:
            mx.eval(self._end[1])
        return self.keys, self.values

    def in_place(self) -> list[mx.array]:
        """All arrays, for a kernel that writes behind the last token, and how many tokens there are, int32 [1].

        There must be room, and only `written_in_place` may come next. Arrays that may be shared are written by MLX
        first, which copies them where they are.
        """
        if self._end is None or self._end[0] != self.filled or not self.owned:
            for array in () if self.owned else self.arrays:
                array[:, :, self.filled : self.filled + 1] = 0
            self.owned = True
            return [*self.arrays, mx.array([self.filled])]
        assert self.keys is not None
        assert self.values is not None
        return [*self.keys, *self.values, self._end[1]]

    def written_in_place(self, end: mx.array) -> None:
        """Count the token that is written when `end` is computed, int32 [1]: the number of tokens with it."""
        self.filled += 1
        self._end = self.filled, end

    def part(self, name: str) -> mx.array:
        """The array that a file calls `name` ("k.weights", …), [rows, kv_heads, capacity, width]."""
        side, part = name.split(".")
        keys, values = self.both()
        array: mx.array = getattr(keys if side == "k" else values, part)
        return array

    def view(self, start: int = 0) -> tuple[Quantized, Quantized]:
        """Views of K and V [rows, kv_heads, filled - start, …] from token `start` on."""
        keys, values = self.both()
        return keys.between(start, self.filled), values.between(start, self.filled)

    def append(self, keys: Quantized, values: Quantized) -> None:
        """Write K and V [rows, kv_heads, n, …] behind the last token; the buffers grow by steps."""
        end = self.filled + keys.tokens
        if self.keys is None or self.values is None:
            self.keys, self.values = (side.blank(_capacity(end)) for side in (keys, values))
        else:
            self.reserve(keys.tokens)
        for buffer, new in zip(self.both(), (keys, values), strict=True):
            for old, part in zip(buffer, new, strict=True):
                old[:, :, self.filled : end] = part
        self.filled = end

    def reserve(self, tokens: int) -> None:
        """Room for so many tokens more; there must be some already."""
        end = self.filled + tokens
        if end > self.capacity:
            held, room = (side.between(0, self.filled) for side in self.both()), _capacity(end) - self.filled
            self.keys, self.values = (side.followed_by(side.blank(room)) for side in held)
            self.owned = True

    def map(self, function: Callable[[Quantized], Quantized], filled: int, *, owned: bool = False) -> "KVBuffers":
        """`function` applied to K and V; `owned` where it copies."""
        keys, values = self.both()
        return KVBuffers(function(keys), function(values), filled, owned=owned)

    def shared(self) -> "KVBuffers":
        """The same tokens under other handles: a write while both are alive goes to a copy."""
        return self.map(lambda part: part.map(lambda a: a[...]), self.filled)

    def rows(self, indices: Sequence[int]) -> "KVBuffers":
        """A copy of some rows, in that order, with the same capacity."""
        wanted = mx.array(list(indices))
        return self.map(lambda part: part.map(lambda a: a[wanted]), self.filled, owned=True)

    def row(self, index: int, start: int) -> "KVBuffers":
        """One row from token `start` on, copied; shared where that is all there is."""
        end = self.filled
        if not start and self.both()[0].weights.shape[0] == 1:
            return self.shared()
        return self.map(lambda part: part.map(lambda a: mx.contiguous(a[index : index + 1, :, start:end])), end - start)

    def last(self, tokens: int) -> "KVBuffers":
        """A copy of the last tokens of all rows, without spare capacity; it shares no memory with these buffers.

        A gather, because mx.contiguous of a slice that is contiguous by itself (one KV head) shares its memory.
        """
        at = mx.arange(self.filled - tokens, self.filled)
        return self.map(lambda part: part.map(lambda a: mx.contiguous(mx.take(a, at, axis=2))), tokens, owned=True)

    @staticmethod
    def stacked(buffers: Iterable["KVBuffers"]) -> "KVBuffers":
        """Rows one under the other, copied: zeros before the shorter ones, so that all end at the same token, and room
        for the next one. None may be empty."""
        several = list(buffers)
        filled = max(each.filled for each in several)
        sides = zip(*(each.view() for each in several), strict=True)
        keys, values = (_right_aligned(side, filled, _capacity(filled + 1)) for side in sides)
        return KVBuffers(keys, values, filled, owned=True)


def _capacity(tokens: int) -> int:
    """Of a buffer for so many."""
    return -(-tokens // STEP) * STEP


def _right_aligned(parts: Sequence[Quantized], end: int, capacity: int) -> Quantized:
    """Rows of all parts [rows, kv_heads, tokens, …] in one array of `capacity` tokens, each ending at token `end`."""
    into = parts[0].blank(capacity, rows=sum(part.weights.shape[0] for part in parts))
    first = 0
    for part in parts:
        last = first + part.weights.shape[0]
        for whole, rows_of_it in zip(into, part, strict=True):
            whole[first:last, :, end - part.tokens : end] = rows_of_it
        first = last
    return into


class BufferedCache:
    """What all quantized caches have in common. mlx-lm asks for these. Engine thread only."""

    def __init__(self, codec: KVCodec | None = None) -> None:
        self.codec = codec or KVCodec()
        self.buffers = KVBuffers()
        self.value_width = 0
        """Elements of the values that were written last, without what fills up a group."""

    def quantized(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim], packed as this cache keeps them."""
        self.value_width = int(values.shape[-1])
        return self.codec.encode(keys, values)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Append K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim]; a view of all of both, quantized."""
        self.buffers.append(*self.quantized(keys, values))
        return self.buffers.view()

    def fetch_arrays(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As `update_and_fetch`, dequantized: K and V in the model's own basis, filled up to whole groups."""
        return self.codec.decode(*self.update_and_fetch(keys, values))

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


class BatchCache(BufferedCache):
    """Rows of several sequences, left-padded so that all end at the same index. Engine thread only.

    The write index is common (`buffers.filled`), the padding is each row's own.
    """

    def __init__(self, padding: Sequence[int], codec: KVCodec | None = None) -> None:
        super().__init__(codec)
        self.padding = list(padding)

    def take_rows(self, caches: Sequence[BufferedCache]) -> None:
        """Take the rows of caches of one sequence each, copied; those of one cache alone are shared."""
        filled = [cache for cache in caches if not cache.empty()]
        if filled and len(filled) != len(caches):
            raise ValueError("an empty cache cannot join filled ones")
        if len(filled) == 1:
            self.buffers = filled[0].buffers.shared()
        elif filled:
            self.buffers = KVBuffers.stacked(cache.buffers for cache in caches)

    def make_room(self) -> None:
        """Room for one token more of each row, which a compiled step writes."""
        self.buffers.reserve(1)

    def written(self, arrays: Sequence[mx.array]) -> None:
        """Take over one token more of each row from a compiled step: the buffers' arrays, or the one array whose
        computation writes the token in place.
        """
        if len(arrays) == 1:
            self.buffers.written_in_place(arrays[0])
        else:
            self.buffers = KVBuffers.of(arrays, self.buffers.filled + 1)

    def trim(self, tokens: int) -> None:
        """Forget each row's last tokens: of those that the last call of the model wrote all but the first, at most."""
        self.buffers.filled -= tokens

    def filter(self, rows: Sequence[int]) -> None:
        """Keep only some rows; padding that none of them needs goes away."""
        self.padding = [self.padding[row] for row in rows]
        if not self.buffers.filled:
            return
        self.buffers = self.buffers.rows(rows)
        if surplus := min(self.padding):
            self.buffers = self.buffers.last(self.buffers.filled - surplus)
            self.padding = [padding - surplus for padding in self.padding]

    def extend(self, other: Self) -> None:
        """Take in the rows of another batch."""
        longest = max(self.buffers.filled, other.buffers.filled)
        missing = [longest - cache.buffers.filled for cache in (self, other)]
        self.padding = [m + p for m, cache in zip(missing, (self, other), strict=True) for p in cache.padding]
        if longest:
            self.buffers = KVBuffers.stacked(cache.buffers for cache in (self, other))


def missing_tokens(caches: Sequence[BufferedCache]) -> list[int]:
    """How many tokens each cache holds less than the longest."""
    longest = max(cache.buffers.filled for cache in caches)
    return [longest - cache.buffers.filled for cache in caches]
