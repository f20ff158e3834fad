"""An agent's KV between turns, as the worker keeps it: in the pool, and as files of blocks and checkpoints.

The worker's own modules decide what is kept, what a file says, which checkpoint serves and what is read; only the store
and the event loop between them are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from agentmem.kv.blockfile import FileName
from agentmem.kv.ledger import NO_VERSION, Ledger, TurnPlace
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.checkpoints import Checkpoint, space_of
from inference_service.engine.geometry import Caches
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.models.loaded import LoadedModel
from inference_service.pool.kv import Table
from inference_service.storage.blocks import read_block, write_block
from inference_service.turns.persisting import State
from inference_service.turns.restored import Restored
from inference_service.turns.restoring import kv_lookup

_KEY = AgentKey("census", "agent", "model")


class Memory:
    """One agent's, of a model that nobody else uses. Engine thread."""

    def __init__(self, model: LoadedModel, state: State, ledger: Ledger, directory: Path) -> None:
        self._model = model
        self._ledger = ledger
        self._captured = tuple(header.first_token + header.token_count for header in state.windows)
        self._blocks: dict[bytes, pb.StoredFile] = {}
        self._windows: dict[bytes, pb.StoredFile] = {}
        for number, header in enumerate((*state.blocks, *state.windows)):
            tensors = state.read(header)
            assert tensors is not None
            path = str(directory / str(number))
            digest, size = write_block(path, header, tensors, model.geometry)
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
        """What a turn goes on from whose first `keep_tokens` tokens are the agent's: in the pool, or in the files.

        Files are read and verified. Raises BlockMiss for one that is not good.
        """
        model = self._model
        tokens = np.array(sequence, np.uint32)
        checkpoints = tuple(at for at in self._captured if at < len(tokens))
        lookup = kv_lookup(_KEY.namespace, model, self._ledger, keep_tokens, tokens, checkpoints)
        if hot:
            found = Restored.in_pool(_KEY, model, lookup)
        else:
            found = Restored(model, _KEY.namespace, lookup, files=dict(self._blocks), window_files=dict(self._windows))
        found.choose(0)
        for header, file in found.wanted_files():
            found.tensors[FileName.of(header)] = read_block(file.path, header, file.digest, model.geometry)
        return found


@contextmanager
def kept(
    model: LoadedModel, token_ids: Sequence[int], caches: Caches, captured: Mapping[int, Checkpoint], directory: Path
) -> Iterator[Memory]:
    """An agent's memory, in the model's pool and in a directory, of caches that hold so many tokens.

    `captured` are the checkpoints before, by position.
    """
    pool = model.memory.pool
    ids = model.fingerprint, _KEY.namespace, np.array(token_ids, np.uint32)
    blocks = list(headers(*ids))
    held, pieces = space_of(caches, model.geometry)
    taken = tuple(pool.full.allocate(len(blocks))), held, tuple(pool.pieces.allocate(pieces))
    table = Table(len(token_ids), *taken)
    model.arenas.write(caches, 0, table.blocks, table.pieces)
    table = pool.publish([header.chain_hash for header in blocks], table)
    positions = {position: checkpoint.tokens for position, checkpoint in captured.items()}
    windows = checkpoint_headers(*ids, positions | ({table.tokens: table.window_tokens} if table.pieces else {}))
    private = {
        header.chain_hash: captured[position]
        for header in windows
        if (position := header.first_token + header.token_count) in captured
    }
    state = State(_KEY, NO_VERSION, model, table, blocks, windows, private)
    ledger = Ledger(np.array(token_ids), turns=(TurnPlace(len(token_ids), 0),))
    try:
        yield Memory(model, state, ledger, directory)
    finally:
        pool.release(table)
