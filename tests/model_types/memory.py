"""An agent's KV between turns, as the worker keeps it: in the pool, and as files of blocks and checkpoints.

The worker's own modules decide what is kept, what a file says, which checkpoint serves and what is read; only the store
and the event loop between them are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentmem.kv.blockfile import BLOCK_TOKENS, FileName
from agentmem.kv.ledger import NO_VERSION, Ledger, TurnPlace
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Checkpoint
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import MemoryRequest, Reservation
from inference_service.pool.kv import Table
from inference_service.storage.blocks import read_block, write_block
from inference_service.turns.persisting import State
from inference_service.turns.restored import Restored
from inference_service.turns.restoring import kv_lookup

GROWTH = 16
"""Tokens that a sequence can grow by in its memory."""

_KEY = AgentKey("census", "agent", "model")


@dataclass(frozen=True)
class AtRest:
    """A sequence that no turn computes: its KV, the memory that this is in, and its checkpoints; `end` is the last."""

    room: Reservation
    kv: KVSequence
    captured: dict[int, Checkpoint]
    end: Checkpoint | None


class Rooms:
    """Memory of a model's pool for turns, until this is closed. Engine thread; nobody else uses the model."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._held = ExitStack()

    def close(self) -> None:
        self._held.close()

    def take(self, tokens: int, checkpoints: int = 0) -> Reservation:
        """Reserve memory for a turn that grows to so many tokens, and makes so many checkpoints before its end."""
        admission = self._model.memory.admission
        room = admission.reserve_now(MemoryRequest(_KEY, (), tokens, checkpoints))
        if room is None or (self._model.geometry.checkpoint_pieces and room.checkpoints < checkpoints):
            raise MemoryError(f"the pool has no memory for {tokens} tokens and {checkpoints} checkpoints")
        self._held.callback(admission.release, room)
        return room

    def empty(self, tokens: int, checkpoints: int = 0) -> tuple[Reservation, Callable[[], KVSequence]]:
        """Memory for a turn from nothing, and what begins it there."""
        room = self.take(tokens, checkpoints)
        return room, lambda: self._model.arenas.sequence(room.places, room.pieces)

    def left(self, turn: TurnJob, room: Reservation) -> AtRest:
        """Return what a turn has left in its memory."""
        kv, _ = turn.future.result()
        assert kv is not None
        return AtRest(room, kv, turn.captured, self._model.arenas.capture(kv))

    def going_on(self, before: AtRest, tokens: int) -> tuple[Reservation, Callable[[], KVSequence]]:
        """Return memory for a turn that follows one at rest, and what begins it, as often as it is called."""
        room, length = self.take(tokens), before.kv.length
        full, cut = divmod(length, BLOCK_TOKENS)
        blocks = [*before.kv.full.blocks[:full], *room.places[full:]]
        copied = (before.kv.full.blocks[full], blocks[full]) if cut else None
        arrays = room.array_bytes > 0
        start = Start(blocks, room.pieces, length, full * BLOCK_TOKENS, copied, checkpoint=before.end, arrays=arrays)
        return room, lambda: self._model.arenas.started(start)


class Memory:
    """One agent's, of a model that nobody else uses. Engine thread."""

    def __init__(self, model: LoadedModel, rooms: Rooms, state: State, ledger: Ledger, directory: Path) -> None:
        self._model = model
        self._rooms = rooms
        self._ledger = ledger
        self._captured = tuple(header.first_token + header.token_count for header in state.windows)
        self._blocks: dict[bytes, pb.StoredFile] = {}
        self._windows: dict[bytes, pb.StoredFile] = {}
        for number, header in enumerate((*state.blocks, *state.windows)):
            reading = state.read(header)
            assert reading is not None
            path = str(directory / str(number))
            digest, size = write_block(path, header, reading(), model.geometry)
            (self._windows if header.window else self._blocks)[header.chain_hash] = pb.StoredFile(
                chain_hash=header.chain_hash,
                path=path,
                digest=digest,
                size_bytes=size,
                first_token=header.first_token,
                token_count=header.token_count,
                tier=types_pb2.TIER_WARM,
            )

    def found(self, sequence: Sequence[int], keep_tokens: int, *, hot: bool) -> Restored:
        """Return the start of a turn whose first `keep_tokens` tokens are the agent's, in the pool or in files.

        There is memory for it. Files are read and verified. Raises BlockMiss for one that is not good.
        """
        model = self._model
        tokens = np.array(sequence, np.uint32)
        checkpoints = tuple(at for at in self._captured if at < len(tokens))
        lookup = kv_lookup(_KEY.namespace, model, self._ledger, keep_tokens, tokens, checkpoints)
        if hot:
            found = Restored.in_pool(_KEY, model, lookup)
        else:
            found = Restored(model, _KEY.namespace, lookup, files=dict(self._blocks), window_files=dict(self._windows))
        found.hold(self._rooms.take(len(sequence) + GROWTH))
        found.choose(0)
        for header, file in found.wanted_files():
            found.tensors[FileName.of(header)] = read_block(file.path, header, file.digest, model.geometry)
        return found


@contextmanager
def kept(
    model: LoadedModel, rooms: Rooms, token_ids: Sequence[int], whole: AtRest, directory: Path
) -> Iterator[Memory]:
    """An agent's memory, in the model's pool and in a directory, of a sequence of these tokens."""
    pool = model.memory.pool
    ids = model.fingerprint, _KEY.namespace, np.array(token_ids, np.uint32)
    blocks = list(headers(*ids))
    own, end = tuple(whole.kv.full.blocks[: len(blocks)]), whole.end
    held = (end.tokens, end.pieces) if end is not None else (0, ())
    table = whole.room.claim(pool, Table(len(token_ids), own, *held))
    table = pool.publish([header.chain_hash for header in blocks], table)
    positions = {position: checkpoint.tokens for position, checkpoint in whole.captured.items()}
    windows = checkpoint_headers(*ids, positions | ({table.tokens: table.window_tokens} if table.pieces else {}))
    captured = {
        header.chain_hash: Table(position, (), whole.captured[position].tokens, whole.captured[position].pieces)
        for header in windows
        if (position := header.first_token + header.token_count) in whole.captured
    }
    state = State(_KEY, NO_VERSION, model, table, blocks, windows, captured)
    ledger = Ledger(np.array(token_ids), turns=(TurnPlace(len(token_ids), 0),))
    try:
        yield Memory(model, rooms, state, ledger, directory)
    finally:
        pool.release(table)
