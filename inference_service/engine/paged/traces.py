"""Passes over rows that are traced once and replayed. Engine thread only.

Describing a pass took 13 ms for 32 rows of Llama 3.1 8B, computing it 11 (H200). A trace holds for one number of rows
and of blocks in a table; both are padded, since each costs 30 to 50 ms. Padding rows write to a block of their own.
A GPU waits 0.1 ms for each page that the host wrote, so a pass leaves the next one's positions.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np

from inference_service.engine.paged.arena import DeviceArena
from inference_service.engine.paged.in_blocks import BlockKVCache, PassTables
from inference_service.engine.paged.kernels import Tables
from inference_service.engine.paged.passes import Pass, StatesCache
from inference_service.engine.paged.sequence import SLACK
from inference_service.engine.paged.shares import Run, most_shares, shares

_ROWS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 832)
_PIECES: Final = 64
_ON: Final = np.array([0, 1], np.int32)


class _Traced:
    """Only its arrays may be used."""

    rows = True
    pieces = ()

    def __init__(self, offset: mx.array) -> None:
        self.offset = offset
        self.tokens = int(offset.shape[0])

    def spans(self) -> Iterator[Any]:
        return iter(())


class _TracedTables:
    """`shares` are in the order of `heads`; none if rows attend alone."""

    def __init__(self, heads: Sequence[int], *arrays: mx.array) -> None:
        self.rows, shares = Tables(*arrays[:3]), arrays[3:]
        self._shares = dict(zip(heads, shares, strict=bool(shares)))

    def shares(self, heads: int) -> mx.array | None:
        return self._shares[heads] if self._shares else None


class _Next(NamedTuple):
    """A pass in which each row goes on by a token. `hosts` has its `tables` in host memory."""

    hosts: list[tuple[Any, Any, Any]]
    offset: mx.array
    tables: list[list[mx.array]]

    def fits(self, hosts: Sequence[tuple[Any, Any, Any]]) -> bool:
        pairs = zip(self.hosts, hosts, strict=True)
        return all(np.array_equal(one, other) for pair in pairs for one, other in zip(*pair, strict=True))


Layers = Callable[[Any, list[Any]], dict[int, BlockKVCache]]
"""(pass, tables by arena) to caches by layer."""


class Traces:
    """`states` are recurrent layers; `heads`, by arena, query heads per KV head where rows attend together."""

    def __init__(
        self,
        model: Callable[[mx.array, Sequence[Any]], mx.array],
        layers: Layers,
        arenas: Sequence[DeviceArena],
        states: Sequence[int] = (),
        heads: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._layers, self._states, self._heads = layers, states, heads or [()] * len(arenas)
        self._model = model
        self._scratch = [DeviceArena(arena.layout, 1) for arena in arenas]
        self._step: Any = mx.compile(self._traced)
        self._next: _Next | None = None

    def close(self) -> None:
        """They hold the model's weights in a cycle."""
        self._step = self._next = None

    def knows(self, of: Pass) -> bool:
        if not of.rows or of.tokens > _ROWS[-1] or len(of.pieces) > _PIECES:
            return False
        return all(piece.tokens <= SLACK for piece in of.pieces)

    def run(
        self, of: Pass, tokens: mx.array, tables: Sequence[PassTables], states: Sequence[Sequence[mx.array]] = ()
    ) -> tuple[mx.array, list[list[mx.array]]]:
        """Return logits [T, 1, vocabulary], and the states after."""
        rows = of.tokens if states else next(count for count in _ROWS if count >= of.tokens)
        missing = rows - of.tokens
        if missing:
            tokens = mx.concatenate([tokens, mx.zeros(missing, dtype=tokens.dtype)])
        hosts = [known.arrays for known in tables]
        runs = any(known.runs for known, heads in zip(tables, self._heads, strict=True) if heads)
        if hosts and not runs and self._next is not None and self._next.fits(hosts):
            offset, each = self._next.offset, self._next.tables
        else:
            offset, each = self._described(of, hosts, tables, rows)
        logits, after, offset, spans = self._step(tokens, offset, each, [list(arrays) for arrays in states])
        later = [(blocks, ends + _ON, floors) for blocks, ends, floors in hosts]
        moved = [[blocks, now, *others] for (blocks, _, *others), now in zip(each, spans, strict=True)]
        self._next = None if runs else _Next(later, offset, moved)
        return logits[: of.tokens], after

    def _described(
        self, of: Pass, hosts: Sequence[tuple[Any, Any, Any]], tables: Sequence[PassTables], rows: int
    ) -> tuple[mx.array, list[list[mx.array]]]:
        """Return offsets and tables, padded to so many rows."""
        missing = rows - of.tokens
        offset, each = mx.array(of.offset), []
        for known, (blocks, spans, floors), scratch, heads in zip(
            tables, hosts, self._scratch, self._heads, strict=True
        ):
            runs = known.runs if heads else []
            if missing:
                nobodys = np.arange(1, missing + 1, dtype=np.int32)
                blocks = np.concatenate([blocks, np.full((missing, blocks.shape[1]), scratch.addresses([0])[0])])
                spans = np.concatenate([spans, np.stack([np.zeros_like(nobodys), nobodys], axis=1)])
                floors = np.concatenate([floors, np.zeros(missing, np.int32)])
                runs = [*runs, Run(rows - 1, of.tokens, missing)] if runs else []
            parts = [shares(runs, n, most_shares(rows, n, _PIECES + 1)) for n in heads if runs]
            each.append([mx.array(part) for part in (blocks, spans, floors, *parts)])
        if missing:
            offset = mx.concatenate([offset, mx.zeros(missing, dtype=mx.int32)])
        return offset, each

    def _traced(
        self, tokens: mx.array, offset: mx.array, tables: list[list[mx.array]], states: list[list[mx.array]]
    ) -> tuple[mx.array, list[list[mx.array]], mx.array, list[mx.array]]:
        of = _Traced(offset)
        found = [_TracedTables(heads, *each) for heads, each in zip(self._heads, tables, strict=True)]
        caches: dict[int, Any] = dict(self._layers(of, found))
        recurrent = [StatesCache(arrays, offset) for arrays in states]
        caches |= {place: cache for place, cache in zip(self._states, recurrent, strict=False)}
        logits = self._model(tokens[:, None], [caches[place] for place in sorted(caches)])
        ends = [spans + mx.array(_ON) for _, spans, *_ in tables]
        return logits, [cache.state for cache in recurrent], offset + 1, ends
