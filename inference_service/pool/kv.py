"""The pool of a model: blocks for full-attention layers, and pieces of windows for sliding layers."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentmem.blockfile import BLOCK_TOKENS
from inference_service.pool.blocks import BlockPool, PoolError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """Where the KV of one sequence is: blocks in order, and the sliding layers' window at its end, in pieces.

    Whoever holds a table holds a reference on each of its blocks and pieces.
    """

    tokens: int
    blocks: tuple[int, ...]
    window_tokens: int = 0
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True)
class Space:
    """How much of a pool: blocks, and pieces of windows."""

    blocks: int
    pieces: int = 0


class KVPool:
    """Both pools of a model, and which windows are in them. Event loop only.

    `window_pieces` is how many pieces a window of window + 256 tokens takes; 0 for a model without sliding layers.
    """

    def __init__(self, space: Space, window_pieces: int = 0) -> None:
        self.full = BlockPool(space.blocks)
        self.sliding = BlockPool(space.pieces)
        self.window_pieces = window_pieces
        self._windows: dict[bytes, Table] = {}
        self.on_release: Callable[[], None] = lambda: None
        """Called whenever references were taken back: there may be room now."""
        self.broken = asyncio.Event()
        """Set when the bookkeeping does not add up: no KV in the pool can be trusted any more."""

    def space(self, tokens: int) -> Space:
        """What a sequence of so many tokens takes."""
        return Space(-(-tokens // BLOCK_TOKENS), self.window_pieces)

    def fits(self, space: Space) -> bool:
        """Whether an empty pool has room for it."""
        return space.blocks <= self.full.capacity and space.pieces <= self.sliding.capacity

    def acquire(self, table: Table) -> None:
        """One reference more on all of a table."""
        self.full.acquire(table.blocks)
        self.sliding.acquire(table.pieces)

    def release(self, table: Table) -> None:
        """One reference less on all of a table. Never raises: it is called where things are cleaned up."""
        try:
            self.full.release(table.blocks)
            self.sliding.release(table.pieces)
        except PoolError as error:
            self.fail(error)
        self.on_release()

    def fail(self, error: PoolError) -> None:
        """Say that the bookkeeping does not add up."""
        log.critical("the pool does not add up; the worker has to start again", exc_info=error)
        self.broken.set()

    def publish(self, names: Sequence[bytes], table: Table) -> Table:
        """Name the blocks of a table that is written, one name each, and the window by the last name.

        Where another has the same, the references move there. Returns the table as it is now.
        """
        blocks = tuple(self.full.publish(name, block) for name, block in zip(names, table.blocks, strict=True))
        if not table.pieces:
            return Table(table.tokens, blocks)
        known = self.find_window(names[-1])
        first = self.sliding.publish(names[-1], table.pieces[0])
        if known is None or first == table.pieces[0]:
            named = Table(table.tokens, blocks, table.window_tokens, table.pieces)
            self._windows = {name: t for name, t in self._windows.items() if self.sliding.find(name) == t.pieces[0]}
            self._windows[names[-1]] = named
            return named
        self.sliding.acquire(known.pieces[1:])
        self.sliding.release(table.pieces[1:])
        self.on_release()
        return Table(table.tokens, blocks, known.window_tokens, known.pieces)

    def find_window(self, name: bytes) -> Table | None:
        """The table whose window stands at the position of that name; only its window is certain to be there still."""
        table = self._windows.get(name)
        return table if table is not None and self.sliding.find(name) == table.pieces[0] else None

    def check_integrity(self, tables: Iterable[Table]) -> None:
        """Raise PoolError unless the references are exactly those of `tables`."""
        held = list(tables)
        self.full.check_integrity(table.blocks for table in held)
        self.sliding.check_integrity(table.pieces for table in held)
