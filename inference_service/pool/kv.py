"""The pool of a model: blocks of full-attention layers, pieces of checkpoints, and its idle agents."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from inference_service.pool.blocks import BlockPool, BlockTokens, PoolError, Segment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """Where the KV of one sequence is: blocks in order, and the checkpoint at its end, in pieces.

    `window_tokens` is what the checkpoint stands for: the tokens in the sliding layers' window, or all.

    To hold a table is to hold a reference on each of its blocks and pieces.
    """

    tokens: int
    blocks: tuple[int, ...]
    window_tokens: int = 0
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True)
class Space:
    """How much of a pool: blocks, and pieces of checkpoints."""

    blocks: int
    pieces: int = 0


class Closed(NamedTuple):
    """Segments of the blocks' arenas and of the pieces' that were closed, and how many bytes they have."""

    full: list[int]
    pieces: list[int]
    nbytes: int


class KVPool:
    """Both pools of a model, and which checkpoints are in them. Event loop only.

    `checkpoint_pieces` is how many pieces a checkpoint takes at most; 0 for a model of full attention alone.
    `segments` are those of the blocks' arenas, and of the pieces'; by default all memory is taken at once.
    """

    def __init__(
        self,
        space: Space,
        checkpoint_pieces: int = 0,
        segments: tuple[Segment | None, Segment | None] = (None, None),
    ) -> None:
        self.full = BlockPool(space.blocks, segments[0])
        self.pieces = BlockPool(space.pieces, segments[1])
        self.checkpoint_pieces = checkpoint_pieces
        self._windows: dict[bytes, Table] = {}
        self.on_release: Callable[[], None] = lambda: None
        """Called whenever references were removed: a waiting request may fit now."""
        self.broken = asyncio.Event()
        """Set when the bookkeeping does not add up: no KV in the pool can be trusted any more."""

    def space(self, tokens: int) -> Space:
        """Return what a sequence of so many tokens takes."""
        return Space(-(-tokens // BLOCK_TOKENS), self.checkpoint_pieces)

    def fits(self, space: Space) -> bool:
        """Return whether an empty pool has space for it."""
        return space.blocks <= self.full.capacity and space.pieces <= self.pieces.capacity

    @property
    def open_bytes(self) -> int:
        """Bytes of the open segments of both."""
        return self.full.open_bytes + self.pieces.open_bytes

    def close_free(self) -> "Closed":
        """Close the segments of both in which all blocks are free, but for the first."""
        before = self.open_bytes
        full, pieces = self.full.close_free(), self.pieces.close_free()
        return Closed(full, pieces, before - self.open_bytes)

    def acquire(self, table: Table) -> None:
        """Add a reference to all of a table."""
        self.full.acquire(table.blocks)
        self.pieces.acquire(table.pieces)

    def release(self, table: Table) -> None:
        """Remove a reference from all of a table. Never raises: it is called for cleaning up."""
        try:
            self.full.release(table.blocks)
            self.pieces.release(table.pieces)
        except PoolError as error:
            self.fail(error)
        self.on_release()

    def fail(self, error: PoolError) -> None:
        """Report that the bookkeeping does not add up."""
        log.critical("the pool does not add up; the worker has to start again", exc_info=error)
        self.broken.set()

    def publish(
        self, names: Sequence[bytes], table: Table, tokens: Mapping[bytes, BlockTokens] = MappingProxyType({})
    ) -> Table:
        """Name the blocks of a table that is written, one name each, and the checkpoint by the last name.

        `tokens` are those of blocks that are to be found by them, by name. Where another has the same block, the
        references move there. Returns the table as it is now.
        """
        blocks = tuple(
            self.full.publish(name, block, tokens.get(name)) for name, block in zip(names, table.blocks, strict=True)
        )
        if not table.pieces:
            return Table(table.tokens, blocks)
        known = self.find_checkpoint(names[-1])
        first = self.pieces.publish(names[-1], table.pieces[0])
        if known is None or first == table.pieces[0]:
            named = Table(table.tokens, blocks, table.window_tokens, table.pieces)
            self._windows = {name: t for name, t in self._windows.items() if self.pieces.find(name) == t.pieces[0]}
            self._windows[names[-1]] = named
            return named
        self.pieces.acquire(known.pieces[1:])
        self.pieces.release(table.pieces[1:])
        self.on_release()
        return Table(table.tokens, blocks, known.window_tokens, known.pieces)

    def find_checkpoint(self, name: bytes) -> Table | None:
        """Return the table whose checkpoint has that name; only that is certain to be there still."""
        table = self._windows.get(name)
        return table if table is not None and self.pieces.find(name) == table.pieces[0] else None

    def check_integrity(self, tables: Iterable[Table]) -> None:
        """Raise PoolError unless the references are exactly those of `tables`."""
        held = list(tables)
        self.full.check_integrity(table.blocks for table in held)
        self.pieces.check_integrity(table.pieces for table in held)


@dataclass(frozen=True)
class HotState:
    """An agent's ledger, and the table of its tokens' KV; valid for exactly one version: uid, number and revision.

    After a trim or a restore the table is that of the full blocks which the ledger had in common with the one before.
    `windows` are windows that are on disk or on their way there: stored tokens by position.
    """

    version: Version
    ledger: Ledger
    table: Table
    windows: Mapping[int, int] = field(default_factory=dict)


class HotAgents:
    """Idle agents' hot states by key, in the order of eviction: by hint, then least recently used first.

    It holds the references on their tables. A turn takes its agent's state out, so that nothing in flight can be
    evicted, and puts it, or a new one, back. `hints` are all agents', also those of other models.
    """

    def __init__(self, pool: KVPool, hints: TurnHints) -> None:
        self._pool = pool
        self._hints = hints
        self._states: OrderedDict[AgentKey, HotState] = OrderedDict()

    def __contains__(self, key: AgentKey) -> bool:
        return key in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[AgentKey]:
        """Yield keys in the order of eviction."""
        return iter(self._hints.order(self._states))

    def evictable_before(self, to: AgentKey) -> list[AgentKey]:
        """Return the keys, in that order, that should be evicted before the agent `to` would be, if it were here."""
        return self._hints.evictable_before(self._states, to)

    def get(self, key: AgentKey) -> HotState | None:
        """Return the agent's state, which stays here."""
        return self._states.get(key)

    def take(self, key: AgentKey) -> HotState | None:
        """Remove and return the agent's state, if there is one, with the references on its table."""
        return self._states.pop(key, None)

    def put(self, key: AgentKey, state: HotState) -> None:
        """Keep the agent's state, with the references on its table, as the most recently used."""
        self.drop(key)
        self._states[key] = state

    def touch(self, key: AgentKey) -> None:
        """Mark the agent, which is here, as the most recently used."""
        self._states.move_to_end(key)

    def drop(self, key: AgentKey) -> None:
        """Forget the agent's state, if there is one."""
        if (state := self.take(key)) is not None:
            self._pool.release(state.table)

    def tables(self, keys: Iterable[AgentKey] | None = None) -> list[Table]:
        """Return the tables of these agents, which are here; by default all tables."""
        return [self._states[key].table for key in (self._states if keys is None else keys)]
