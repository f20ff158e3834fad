"""A model's pool: blocks of full attention, and pieces of checkpoints."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Self

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.paged.sequence import Checkpoint
from inference_service.pool.blocks import BlockPool, BlockTokens, PoolError, Segment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """One sequence's blocks, and the checkpoint of `window_tokens` at its end. Holders have references."""

    tokens: int
    blocks: tuple[int, ...]
    window_tokens: int = 0
    pieces: tuple[int, ...] = ()

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        return cls(checkpoint.position, (), checkpoint.tokens, checkpoint.pieces)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.tokens, self.window_tokens, self.pieces)


@dataclass(frozen=True)
class Space:
    blocks: int
    pieces: int = 0


class Closed(NamedTuple):
    full: list[int]
    pieces: list[int]
    nbytes: int


class KVPool:
    """A model's blocks (`full`), `pieces`, and checkpoints of at most `checkpoint_pieces`. Event loop only."""

    def __init__(
        self,
        space: Space,
        checkpoint_pieces: int = 0,
        segments: tuple[Segment | None, Segment | None] = (None, None),
    ) -> None:
        self.full = BlockPool(space.blocks, segments[0])
        self.pieces = BlockPool(space.pieces, segments[1])
        self.checkpoint_pieces = checkpoint_pieces
        self._checkpoints: dict[bytes, tuple[Table, tuple[int, ...]]] = {}
        """By name, with the `lives` of their pieces."""
        self.on_release: Callable[[], None] = lambda: None
        """A waiting request may fit now."""
        self.broken = asyncio.Event()
        """No KV in the pool can be trusted."""

    def space(self, tokens: int) -> Space:
        return Space(-(-tokens // BLOCK_TOKENS), self.checkpoint_pieces)

    def fits(self, space: Space) -> bool:
        return space.blocks <= self.full.capacity and space.pieces <= self.pieces.capacity

    @property
    def open_bytes(self) -> int:
        return self.full.open_bytes + self.pieces.open_bytes

    def close_free(self) -> "Closed":
        before = self.open_bytes
        full, pieces = self.full.close_free(), self.pieces.close_free()
        return Closed(full, pieces, before - self.open_bytes)

    def given_back(self, closed: Closed) -> None:
        self.full.given_back(closed.full)
        self.pieces.given_back(closed.pieces)
        self.on_release()

    def acquire(self, table: Table) -> None:
        self.full.acquire(table.blocks)
        self.pieces.acquire(table.pieces)

    def release(self, table: Table) -> None:
        """Never raises: it is called for cleanup."""
        try:
            self.full.release(table.blocks)
            self.pieces.release(table.pieces)
        except PoolError as error:
            self.fail(error)
        self.on_release()

    def fail(self, error: PoolError) -> None:
        log.critical("the pool does not add up; the worker has to start again", exc_info=error)
        self.broken.set()

    def publish(
        self, names: Sequence[bytes], table: Table, tokens: Mapping[bytes, BlockTokens] = MappingProxyType({})
    ) -> Table:
        """Name a written table's blocks, and its checkpoint by the last name; return it with known ones."""
        blocks = tuple(
            self.full.publish(name, block, tokens.get(name)) for name, block in zip(names, table.blocks, strict=True)
        )
        if not table.pieces:
            return Table(table.tokens, blocks)
        return self.publish_checkpoint(names[-1], Table(table.tokens, blocks, table.window_tokens, table.pieces))

    def publish_checkpoint(self, name: bytes, table: Table) -> Table:
        if (known := self.find_checkpoint(name)) is not None:
            self.pieces.acquire(known.pieces)
            self.pieces.release(table.pieces)
            self.on_release()
            return Table(table.tokens, table.blocks, known.window_tokens, known.pieces)
        self._checkpoints = {each: kept for each, kept in self._checkpoints.items() if self._is_there(*kept)}
        self._checkpoints[name] = table, self.pieces.lives(table.pieces)
        return table

    def find_checkpoint(self, name: bytes) -> Table | None:
        """Return a table whose checkpoint is there; its blocks may not be."""
        found = self._checkpoints.get(name)
        return found[0] if found is not None and self._is_there(*found) else None

    def _is_there(self, table: Table, lives: tuple[int, ...]) -> bool:
        return self.pieces.lives(table.pieces) == lives

    def check_integrity(self, tables: Iterable[Table]) -> None:
        held = list(tables)
        self.full.check_integrity(table.blocks for table in held)
        self.pieces.check_integrity(table.pieces for table in held)
