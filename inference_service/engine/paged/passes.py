"""One call of the model, and the caches that its layers get. Engine thread only.

Pieces are the next tokens of sequences: one goes to the model as tokens [1, n], several as rows [T, 1] with positions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from inference_service.engine.codec import KVCodec
from inference_service.engine.device import on_cpu
from inference_service.engine.geometry import StateGroup
from inference_service.engine.paged.sequence import Sequence, States, WorkingKV, gathered
from inference_service.engine.quantization import Quantized


class Piece(NamedTuple):
    sequence: Sequence
    tokens: int


class Pass:
    def __init__(self, pieces: Items[Piece], *, rows: bool | None = None, ends: bool = False) -> None:
        """`rows`: as [T, 1], by default with several pieces. `ends`: logits of each piece's last token alone."""
        self.pieces = list(pieces)
        self.rows = len(self.pieces) > 1 if rows is None else rows
        self.starts = [piece.sequence.length for piece in self.pieces]
        self.tokens = sum(piece.tokens for piece in self.pieces)
        self.wanted: mx.array | None = None
        if ends and len(self.pieces) < self.tokens:
            self.wanted = mx.array([end - 1 for _, _, end, _ in self.spans()])
        if self.rows:
            at = [start + i for (_, n), start in zip(self.pieces, self.starts, strict=True) for i in range(n)]
            self.offset: int | mx.array = mx.array(at, dtype=mx.int32)
        else:
            self.offset = self.starts[0] if self.starts else 0

    def spans(self) -> Iterator[tuple[Sequence, int, int, int]]:
        row = 0
        for (sequence, n), start in zip(self.pieces, self.starts, strict=True):
            yield sequence, row, row + n, start
            row += n

    def seen(self, window: int) -> list[tuple[int, int]]:
        found = []
        for _, first, end, start in self.spans():
            before = min(start, window - 1) if window else start
            ends = [before + i + 1 for i in range(end - first)]
            found += [(max(0, stop - window) if window else 0, stop) for stop in ends]
        return found

    def advance(self) -> None:
        for sequence, n in self.pieces:
            sequence.length += n


class StatesCache(ArraysCache):  # type: ignore[misc]  # mlx-lm has no types
    """A recurrent layer's arrays [rows, …]; None before the first token."""

    def __init__(self, arrays: Items[mx.array | None], offset: int | mx.array) -> None:
        super().__init__(len(arrays))
        self.cache: list[mx.array | None] = list(arrays)
        self.offset = offset

    @property
    def state(self) -> list[mx.array]:
        return [array for array in self.cache if array is not None]

    def empty(self) -> bool:
        return not self.state

    def make_mask(self, n: int, **_: Any) -> None:
        """None: rows have no padding."""

    def advance(self, n: int) -> None:
        """The pass counts: some models do not report the tokens they took."""


class KVCache(ABC):
    """One layer's K and V within a pass, as mlx-lm's caches."""

    def __init__(self, of: Pass, layer: int, codec: KVCodec, window: int) -> None:
        self.of = of
        self.layer = layer
        self.codec = codec
        self.window = window

    @property
    def offset(self) -> int | mx.array:
        """The first token's position; int32 [T] for rows."""
        return self.of.offset

    @property
    @abstractmethod
    def state(self) -> list[mx.array]:
        """Arrays to evaluate before the layer's tokens count."""

    @abstractmethod
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Take K and V [rows, kv_heads, n, …] of the pass's tokens. Return what attention sees: arrays, `Pieces`, or a
        cache with `attend`.
        """

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        """Attend with queries [rows, heads, n, k_dim] over the tokens each sees: [rows, heads, n, v_dim]."""
        raise NotImplementedError

    def attend_latents(self, queries: mx.array, rotary_queries: mx.array, scale: float) -> mx.array:
        raise NotImplementedError

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | str | None:
        """Return None for one token or rows, "causal", or bool [n, total]. Raises ValueError for another window than
        the layer's.
        """
        if window_size not in (None, self.window or None):
            if not self.window:
                raise ValueError(
                    f"its mask is that of a window of {window_size} tokens, and its cache that of full attention; a "
                    "model's make_cache has to give such layers a RotatingKVCache"
                )
            raise ValueError(f"the layer's window is {self.window}, not {window_size}")
        if self.of.rows:
            return None
        before = int(self.offset)
        shown = min(before, self.window - 1) if self.window else before
        if not return_array and n == 1:
            return None
        if not return_array and shown + n <= (self.window or shown + n):
            return "causal"
        return banded(n, shown + n, self.window or shown + n)

    def fetch_arrays(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As `update_and_fetch`; rows are padded to the longest."""
        seen, others = self.update_and_fetch(keys, values)
        if not isinstance(seen, Pieces):
            return seen, others
        longest = max(int(each.keys.shape[2]) for each in seen)
        k = mx.concatenate([_filled(each.keys, each.queries, longest) for each in seen])
        v = mx.concatenate([_filled(each.values, each.queries, longest) for each in seen])
        return k, v

    def arrays_mask(self, n: int, window_size: int | None, *, return_array: bool) -> mx.array | None:
        """Return bool [n, total], or [T, 1, 1, total] for rows; None if one query sees all."""
        mask = self.make_mask(n, window_size, return_array=True)
        if not self.of.rows:
            return mask if n > 1 or (return_array and self.window) else None  # type: ignore[return-value]
        first, end = (mx.array(each)[:, None, None, None] for each in zip(*self.of.seen(self.window), strict=True))
        at = mx.arange(max(stop for _, stop in self.of.seen(self.window)))
        return (at >= first) & (at < end)


def banded(n: int, total: int, window: int) -> mx.array:
    """Return bool [n, total]: each position sees itself and the window - 1 before it."""
    queries, keys = mx.arange(total - n, total)[:, None], mx.arange(total)[None]
    return (queries >= keys) & (queries < keys + window)


class Seen(NamedTuple):
    """[1, kv_heads, tokens, …] that a piece's last `queries` tokens see."""

    keys: mx.array
    values: mx.array
    queries: int
    window: int = 0


class Pieces(list[Seen]):
    """By piece, in the rows' order."""

    @property
    def dtype(self) -> mx.Dtype:
        """Some models ask V for it."""
        return self[0].values.dtype

    @property
    def window(self) -> int:
        """Another layer may attend over them, without a cache."""
        return self[0].window


class ArrayKVCache(KVCache):
    """Over arrays that sequences keep; `packed` goes into blocks after the pass."""

    def __init__(
        self, of: Pass, layer: int, codec: KVCodec, window: int, load: Callable[[Sequence, int], WorkingKV]
    ) -> None:
        super().__init__(of, layer, codec, window)
        self._load = load
        self.packed: list[Quantized] = []

    @property
    def state(self) -> list[mx.array]:
        packed = [part for side in self.packed for part in side]
        kept = (piece.sequence.working.get(self.layer) for piece in self.of.pieces)
        return packed + [array for working in kept if working is not None for array in working.state]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        self.packed, (k, v) = self.codec.stored(keys, values)
        k, v = k[..., : keys.shape[-1]], v[..., : values.shape[-1]]
        if not self.of.rows:
            return self._working(self.of.pieces[0].sequence, k).append(k, v)
        seen = Pieces()
        for sequence, first, end, _ in self.of.spans():
            shown = self._working(sequence, k).append(*(x[first:end].swapaxes(0, 2) for x in (k, v)))
            seen.append(Seen(*shown, end - first, self.window))
        return seen, seen

    def _working(self, sequence: Sequence, keys: mx.array) -> WorkingKV:
        if not sequence.arrays:
            mx.eval(keys)  # Frees earlier layers' arrays.
            return self._load(sequence, self.layer)
        return sequence.working.setdefault(self.layer, WorkingKV(self.window))


def _filled(array: mx.array, rows: int, tokens: int) -> mx.array:
    whole = mx.pad(array, [(0, 0), (0, 0), (0, tokens - array.shape[2]), (0, 0)])
    return mx.broadcast_to(whole, (rows, *whole.shape[1:]))


def over_pieces(
    attend: Any, queries: mx.array, pieces: Pieces, window: int, scale: float, sinks: mx.array | None
) -> mx.array:
    """Attend with rows' queries [T, heads, 1, k_dim], by mlx-lm's `attend`: [T, heads, 1, v_dim]."""
    found, row = [], 0
    scaled = queries * scale if sinks is None and on_cpu() else None
    for k, v, n, _ in pieces:
        if n == 1 and scaled is not None:
            found.append(_one_query(scaled[row : row + 1], k, v))
        else:
            own, total = queries[row : row + n].swapaxes(0, 2), int(k.shape[2])
            mask: Any = None if n == 1 else "causal" if total <= (window or total) else banded(n, total, window)
            found.append(attend(own, k, v, cache=None, scale=scale, mask=mask, sinks=sinks).swapaxes(0, 2))
        row += n
    return found[0] if len(found) == 1 else mx.concatenate(found)


def _one_query(scaled: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """MLX's function multiplies K and V with each query head alone: 8 rows of SmolLM2 over 390 tokens took a CPU 96 ms,
    so 54.
    """
    _, heads, _, width = scaled.shape
    grouped = scaled.reshape(1, keys.shape[1], -1, width)
    weights = mx.softmax(grouped @ keys.swapaxes(2, 3), axis=-1, precise=True)
    return (weights @ values).reshape(1, heads, 1, -1)


def state_caches(of: Pass, group: StateGroup | None) -> dict[int, StatesCache]:
    """A sequence without a state gets an empty one."""
    if group is None:
        return {}
    for sequence, _ in of.pieces:
        if sequence.states is None:
            sequence.states, sequence.row = States([[None] * count for _, count in group.counts]), 0
    rows = gathered([piece.sequence for piece in of.pieces])
    return {layer: StatesCache(arrays, of.offset) for layer, arrays in zip(group.layers, rows.layers, strict=True)}


def settle(of: Pass, arrays: Items[Items[mx.array | None]]) -> States | None:
    """Give each sequence its states, as copies: views would keep a whole chunk alive."""
    if not arrays:
        return None
    after = States(arrays) if of.rows else States(arrays).rows([0])
    for row, (sequence, _) in enumerate(of.pieces):
        sequence.states, sequence.row = after, row
    return after
