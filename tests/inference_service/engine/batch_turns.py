"""Turns on a model's batch engine, and whether what they were told, and what they leave, is right.

Blocks are poisoned before a turn gets them: scales are NaN where nothing was written.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.domain import Sampling, TokenEvent
from inference_service.engine.generation import Decoding, Generated, TurnJob
from inference_service.engine.paged.arena import Arena, HostArena
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import BlockTable, Checkpoint, Sequence
from inference_service.engine.paged.store import KVStore
from inference_service.models.loaded import LoadedModel
from inference_service.pool.kv import Table
from tests.oracle import Oracle

TEXT = "The boat by the sea, ü€😀 nobody knows. "
EXACT = Sampling(ignore_eos=True)
GROWS = 64
"""Tokens that a turn which generates nothing has room for besides its prompt."""


class Room:
    """Blocks and pieces of the pool for one turn, until nobody has them any more."""

    def __init__(self, model: LoadedModel, tokens: int, checkpoints: int = 1, before: "Room | None" = None) -> None:
        pool, store = model.memory.pool, model.arenas
        self.before = before
        if pool.pieces.free < (1 + checkpoints) * pool.checkpoint_pieces:
            gc.collect()
        self.blocks = pool.full.allocate(-(-tokens // 256))
        self.pieces = pool.pieces.allocate((1 + checkpoints) * pool.checkpoint_pieces)
        weakref.finalize(self, pool.release, Table(0, tuple(self.blocks), 0, tuple(self.pieces)))
        poison(store.full, self.blocks)
        if store.windows is not None:
            poison(store.windows, self.pieces)


def poison(arena: Arena, blocks: Items[int]) -> None:
    arena.take(blocks)
    if isinstance(arena, HostArena):
        for block in blocks:
            arena.words(block)[:] = 0xFFFFFFFF


_rooms: "weakref.WeakKeyDictionary[Sequence, Room]" = weakref.WeakKeyDictionary()


class Beginning:
    """Begins a sequence in a room; as often as it has to begin."""

    def __init__(self, model: LoadedModel, room: Room, start: Start) -> None:
        self.room, self.start = room, start
        self._store = model.arenas

    def __call__(self) -> Sequence:
        sequence = self._store.started(self.start)
        _rooms[sequence] = self.room
        return sequence


def new_kv(
    model: LoadedModel,
    tokens: int,
    warm: Sequence | None = None,
    *,
    reused: int | None = None,
    checkpoint: Checkpoint | None = None,
    checkpoints: int = 1,
    arrays: bool = True,
) -> Beginning:
    """Return a beginning of KV for so many tokens, empty or after `reused` tokens of another, which is unchanged.

    By default after all, and from a checkpoint at its end, if the model needs one.
    """
    room = Room(model, tokens, checkpoints, None if warm is None else _rooms[warm])
    start = Start(room.blocks, room.pieces, arrays=arrays)
    if warm is not None and warm.length:
        at = warm.length if reused is None else reused
        full = at // 256
        start = Start(
            [*warm.full.blocks[:full], *room.blocks[full:]],
            room.pieces,
            at,
            full * 256,
            (warm.full.blocks[full], room.blocks[full]) if at % 256 else None,
            checkpoint=checkpoint or model.arenas.capture(warm),
            arrays=arrays,
        )
    return Beginning(model, room, start)


@dataclass
class Turn:
    """A turn and what it was told."""

    job: TurnJob
    events: list[TokenEvent] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def generated(self) -> Generated:
        return self.job.future.result(0)[1]

    @property
    def kv(self) -> Sequence:
        found = self.job.future.result(0)[0]
        assert found is not None
        return found

    @property
    def said(self) -> list[int]:
        return [event.token_id for event in self.events]

    @property
    def whole(self) -> bool:
        """KV is that of the sequence and of what was generated, exactly."""
        kv, generated = self.job.future.result(0)
        return kv is not None and kv.length == len(self.job.sequence) + len(generated.token_ids) and not kv.working


def begin(
    model: LoadedModel,
    prompt: Items[int],
    tokens: int | None = 12,
    sampling: Sampling = EXACT,
    warm: Sequence | None = None,
    *,
    make: Callable[[], Sequence] | None = None,
    arrays: bool = True,
    checkpoints: Collection[int] = (),
    top_logprobs: int | None = 0,
    **decoding: Any,
) -> Turn:
    """Queue a turn: a prompt alone, or so many tokens after it; on from `warm`, or from what `make` makes."""
    turn = Turn(None)  # type: ignore[arg-type]  # The job needs the lists that the turn holds.
    how = None if tokens is None else Decoding(tokens, sampling=sampling, top_logprobs=top_logprobs, **decoding)
    room = len(prompt) + (GROWS if tokens is None else tokens + 1)
    reused = 0 if warm is None else min(warm.length, len(prompt) - (tokens is not None))
    make = make or new_kv(model, room, warm, reused=reused, checkpoints=1 + len(checkpoints), arrays=arrays)
    options: dict[str, Any] = {"reused": reused, "checkpoints": checkpoints, "arrays": arrays}
    turn.job = TurnJob(prompt, make, how, turn.events.append, turn.cancelled, **options)
    model.engine.add(turn.job)
    return turn


def computed(network: Any, store: KVStore, *pieces: tuple[Sequence, Items[int]], rows: bool | None = None) -> mx.array:
    """Compute the next tokens of sequences in one pass and write their KV; logits [tokens, vocabulary], evaluated."""
    of = Pass([Piece(sequence, len(tokens)) for sequence, tokens in pieces], rows=rows)
    ids = mx.array([token for _, tokens in pieces for token in tokens])
    logits, written = store.compute(network, of, ids)
    mx.eval(logits, written.state)
    written.put()
    return logits


def prompt_of(model: LoadedModel, number: int, repeats: int) -> list[int]:
    return model.tokenizer.encode(f"{number} " + TEXT * repeats, parse_special=False)


def run(model: LoadedModel, ticks: int = 10_000) -> int:
    """Tick until nothing is left; how many ticks it took."""
    for step in range(ticks):
        if not model.engine.step():
            return step + 1
    raise AssertionError("the engine does not come to an end")


def until_told(model: LoadedModel, turns: Items[Turn], tokens: int = 1) -> None:
    """Tick until each of these was told so many tokens."""
    for _ in range(10_000):
        if all(len(turn.events) >= tokens for turn in turns):
            return
        model.engine.step()
    raise AssertionError("the engine tells nothing")


def difference(oracle: Oracle, turn: Turn) -> float:
    """The largest one of a log-probability that it was told."""
    sequence = turn.job.sequence
    wanted = oracle.logprobs_of([*sequence, *turn.said], len(sequence))
    return float(np.abs(wanted - np.array([e.logprob for e in turn.events])).max())


def right(oracle: Oracle, turn: Turn) -> bool:
    return difference(oracle, turn) < 1e-3


Packed = dict[str, npt.NDArray[Any]]


def packed(model: LoadedModel, kv: Sequence, end: int | None = None, *, of_full: bool = False) -> Packed:
    """Return its blocks' content up to token `end`, by default all: codes, scales and biases, as numbers; of windows
    those that are shown; and states. Or of full attention alone."""
    store, geometry = model.arenas, model.geometry
    end = kv.length if end is None else end
    found = _read(store.full, kv.full, 0, end)
    if of_full:
        return found
    if kv.window is not None:
        assert store.windows is not None
        found |= {f"window.{name}": each for name, each in _read_window(store.windows, kv, end).items()}
    if kv.states is not None and geometry.states is not None:
        states = kv.states.rows([kv.row]).arrays
        found |= {f"states.{at}": np.array(each) for at, each in enumerate(states)}
    return found


def _read_window(arena: Arena, kv: Sequence, end: int) -> Packed:
    table = kv.window
    assert table is not None
    return _read(arena, table, max(table.first, end - table.window), end)


def _read(arena: Arena, table: BlockTable, start: int, end: int) -> Packed:
    first = table.first + (start - table.first) // table.tokens * table.tokens
    found = arena.arrays(table.of(start, end), end - first) if start < end else {}
    return {name: each[:, :, start - first :] for name, each in found.items()}


def rewrite(model: LoadedModel, kv: Sequence, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
    """Change tensors [layers, kv_heads, tokens, …] in its blocks, of all tokens that are there."""
    store = model.arenas
    for arena, table in ((store.full, kv.full), (store.windows, kv.window)):
        if isinstance(arena, HostArena) and table is not None:
            start = kv.window.kept_from(kv.length) if table is kv.window and kv.window else 0
            tensors = {name: change(old) for name, old in _read(arena, table, start, kv.length).items()}
            for at in range(start, kv.length):
                place = (at - table.first) % table.tokens
                new = {name: each[:, :, at - start : at - start + 1] for name, each in tensors.items()}
                arena.put([(table.at(at), place, new)])


def differing(found: Packed, wanted: Packed) -> float:
    """The largest share of a tensor's numbers that differ; of codes each is one."""
    assert found.keys() == wanted.keys()
    return max((_share(name, found[name], wanted[name]) for name in wanted), default=0.0)


def _share(name: str, found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    assert found.shape == wanted.shape, name
    if name.endswith("weights"):
        found, wanted = (codes(each) for each in (found, wanted))
    return float((found != wanted).mean())


def codes(weights: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return (weights.astype(np.int64)[..., None] >> np.arange(0, 32, 4)) & 15
