"""An agent into one portable file.

The ledger is whole. A block that is bad, elsewhere, or evicted meanwhile ends the KV. Models with checkpoints get the
last that blocks reach.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np

from agentmem.errors import NotFound
from agentmem.kv.blockfile import BlockHeader
from agentmem.kv.ledger import Ledger
from agentmem.v1 import cache_store_pb2
from agentmem.v1 import portable_pb2 as pb
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry
from inference_service.memory.checkpoints import CheckpointCandidate, candidates_at, likely_positions, stored_tokens
from inference_service.memory.restore import Choice, Lookup, choose, look_up
from inference_service.models.loaded import LoadedModel
from inference_service.portable.format import BEGINNING, Manifest, framed, pieces
from inference_service.storage.client import StoreClient
from inference_service.turns.restoring import Restorer

_NEXT = 0
"""An agent goes on after its ledger."""

_Files = dict[bytes, cache_store_pb2.StoredFile]
"""By chain hash."""
_File = tuple[cache_store_pb2.StoredFile, memoryview]


@dataclass(eq=False)
class Export:
    """Files are read as they are sent."""

    _restorer: Restorer
    _head: bytes
    _key: AgentKey
    _fingerprint: str
    _geometry: Geometry
    _lookup: Lookup
    _blocks: _Files
    _checkpoints: _Files

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield pieces of at most CHUNK_BYTES."""
        for piece in pieces(self._head):
            yield piece
        count = 0
        async for file, data in self._files():
            described = cache_store_pb2.StoredFile()
            described.CopyFrom(file)
            for name in ("path", "tier", "token_ids"):
                described.ClearField(name)
            yield framed(pb.PortablePart(file=described))
            for piece in pieces(data):
                yield piece
            count += 1
        yield framed(pb.PortablePart(end=pb.PortableEnd(files=count)))

    async def _files(self) -> AsyncIterator[_File]:
        """Yield blocks, then the checkpoint that they reach."""
        checkpoint = await self._checkpoint(self._blocks)  # Some models need one.
        sent: _Files = {}
        for candidate in self._choose(self._blocks).warm:
            file = self._blocks[candidate.header.chain_hash]
            if (data := await self._read(candidate.header, file)) is None:
                checkpoint = await self._checkpoint(sent)
                break
            sent[candidate.header.chain_hash] = file
            yield file, data
        if checkpoint is not None:
            yield checkpoint

    async def _checkpoint(self, blocks: _Files) -> _File | None:
        """Return the good checkpoint that reaches furthest."""
        while (chosen := self._choose(blocks).checkpoint) is not None:
            file = self._checkpoints[chosen.name]
            header = chosen.header(self._fingerprint, self._key.namespace, file.token_count)
            if (data := await self._read(header, file)) is not None:
                return file, data
            del self._checkpoints[chosen.name]
        return None

    def _choose(self, blocks: _Files) -> Choice:
        if self._geometry.resumes_anywhere:
            return choose(self._lookup, (), blocks)
        stored = stored_tokens(self._lookup.checkpoints, self._checkpoints)
        return choose(self._lookup, (), blocks, stored, self._geometry.window, exact=self._geometry.in_order)

    async def _read(self, header: BlockHeader, file: cache_store_pb2.StoredFile) -> memoryview | None:
        return await self._restorer.read_bytes(self._geometry, self._key.model_id, header, file)


@dataclass(eq=False)
class Exporter:
    _store: StoreClient
    _restorer: Restorer

    async def collect(self, key: AgentKey, model: LoadedModel) -> Export:
        """Return the present state, under the agent's lock. Raises NotFound, FailedPrecondition, Unavailable."""
        agent = await self._store.open(key, peek=True)
        ledger = agent.ledger
        if ledger is None:
            raise NotFound("agent", key.agent_id)
        lookup = await asyncio.to_thread(_lookup, key.namespace, model, ledger)
        windows = [window.name for window in lookup.checkpoints]
        nobody = key._replace(agent_id="")
        found = await self._store.open(nobody, block_hashes=lookup.hashes(), window_hashes=windows, peek=True)
        manifest = Manifest(
            key,
            model.fingerprint,
            ledger,
            agent.context_policy,
            model.model_fingerprint,
            model.calibration.portable if model.calibration else b"",
            str(model.geometry.format.bits),
        )
        head = await asyncio.to_thread(lambda: BEGINNING + framed(pb.PortablePart(head=manifest.to_proto())))
        blocks, checkpoints = (
            {name: file for name, file in files.items() if file.path} for files in (found.files, found.windows)
        )
        return Export(self._restorer, head, key, model.fingerprint, model.geometry, lookup, blocks, checkpoints)


def _lookup(namespace: str, model: LoadedModel, ledger: Ledger) -> Lookup:
    """Return files for an agent that goes on after its ledger."""
    ids = model.fingerprint, namespace
    windows: tuple[CheckpointCandidate, ...] = ()
    if not model.geometry.resumes_anywhere:
        windows = candidates_at(*ids, ledger.token_ids, likely_positions(ledger))
    return look_up(*ids, ledger.token_ids, len(ledger), np.append(ledger.token_ids, np.uint32(_NEXT)), windows)
