"""An agent's ledger and files of KV into one portable file.

What KV is missing or bad, or not on the store's disk, shortens the exported KV and fails nothing: the ledger is always
whole. KV of a model that resumes at checkpoints ends at the last of them that there are blocks up to: that is as far as
an import can go on from.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from agentmem.errors import NotFound
from agentmem.kv.blockfile import CHUNK_BYTES, BlockHeader, FileName
from agentmem.kv.ledger import Ledger
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry
from inference_service.memory.checkpoints import CheckpointCandidate, candidates_at, likely_positions, stored_tokens
from inference_service.memory.restore import Lookup, choose, look_up
from inference_service.models.loaded import LoadedModel
from inference_service.portable import header, spool
from inference_service.portable.format import Manifest, kv_geometry, layers_of, state_tensors
from inference_service.portable.spool import Spool, SpoolFile
from inference_service.storage.client import Opened, StoreClient
from inference_service.turns.fetching import Fetcher

_NEXT = 0
"""Stands for whatever comes next: an agent goes on behind its ledger, whatever that is."""
_HASH_BYTES = 4 << 20


@dataclass(frozen=True)
class Exported:
    """A portable file: its header, and its data. Close that."""

    header: bytes
    data: SpoolFile

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield all of it, in order, in pieces of at most CHUNK_BYTES."""
        for start in range(0, len(self.header), CHUNK_BYTES):
            yield self.header[start : start + CHUNK_BYTES]
        at = 0
        while chunk := await asyncio.to_thread(self.data.read, CHUNK_BYTES, at):
            yield chunk
            at += len(chunk)


@dataclass(frozen=True)
class _Parts:
    """What the file's KV is made of: `tokens` of it, in blocks, and for hybrid models a checkpoint."""

    tokens: int = 0
    blocks: Sequence[BlockHeader] = ()
    window: BlockHeader | None = None

    def first_positions(self, geometry: Geometry) -> tuple[int, ...]:
        """Return where the KV of each layer begins; () if there is none."""
        first = dict.fromkeys(range(geometry.layers if self.tokens else 0), 0)
        if self.window is not None:
            for layers in layers_of(geometry, window=True).values():
                first |= dict.fromkeys(layers, self.window.first_token)
        return tuple(first.values())


@dataclass(eq=False)
class Exporter:
    """Collects agents. Event loop; files on other threads."""

    _store: StoreClient
    _fetcher: Fetcher
    _spool: Spool

    async def collect(self, key: AgentKey, model: LoadedModel) -> Exported:
        """Return the agent's present state as a file. Call it under the agent's lock.

        Raises NotFound, ResourceExhausted, and Unavailable where the store does not answer.
        """
        agent = await self._store.open(key, peek=True)
        ledger = agent.ledger
        if ledger is None:
            raise NotFound("agent", key.agent_id)
        lookup = await asyncio.to_thread(_lookup, key.namespace, model, ledger)
        opened = await self._store.open(
            key._replace(agent_id=""),
            block_hashes=lookup.hashes(),
            window_hashes=[window.name for window in lookup.checkpoints],
            peek=True,
        )
        refused: set[FileName] = set()
        while True:
            parts = _choose(key.namespace, model, lookup, opened, refused)
            geometry = kv_geometry(model.geometry)
            manifest = Manifest(
                key,
                model.fingerprint,
                geometry if parts.tokens else replace(geometry, states=()),
                ledger,
                parts.tokens,
                parts.first_positions(model.geometry),
                context_policy=agent.context_policy,
                model_fingerprint=model.model_fingerprint,
                calibration=model.calibration.portable if model.calibration else b"",
                state_position=parts.tokens if geometry.states else 0,
            )
            data = await asyncio.to_thread(self._spool.file, manifest.data_bytes)
            try:
                bad = await self._fill(data, manifest, model.geometry, parts, opened)
                if bad is None:
                    return Exported(await asyncio.to_thread(_header, manifest, data), data)
            except BaseException:
                data.close()
                raise
            data.close()
            refused.add(bad)

    async def _fill(
        self, data: SpoolFile, manifest: Manifest, geometry: Geometry, parts: _Parts, opened: Opened
    ) -> FileName | None:
        """Write all parts to their places, and return the one that is bad, if one is."""
        key, places = manifest.key, manifest.places
        for part in filter(None, (*parts.blocks, parts.window)):
            name, file = FileName.of(part), (opened.windows if part.window else opened.files)[part.chain_hash]
            good, _ = await self._fetcher.read(geometry, key.namespace, key.model_id, [(part, file)])
            if name not in good:
                return name
            tokens = min(part.token_count, parts.tokens - part.first_token)
            layers = layers_of(geometry, window=part.window)
            await asyncio.to_thread(spool.write, data, places, layers, part.first_token, tokens, good[name])
            if part.window:
                await asyncio.to_thread(spool.write_states, data, places, state_tensors(geometry), good[name])
        return None


def _lookup(namespace: str, model: LoadedModel, ledger: Ledger) -> Lookup:
    """Return which files would serve an agent that goes on behind its ledger."""
    ids = model.fingerprint, namespace
    windows: tuple[CheckpointCandidate, ...] = ()
    if not model.geometry.resumes_anywhere:
        windows = candidates_at(*ids, ledger.token_ids, likely_positions(ledger))
    return look_up(*ids, ledger.token_ids, len(ledger), np.append(ledger.token_ids, np.uint32(_NEXT)), windows)


def _choose(namespace: str, model: LoadedModel, lookup: Lookup, opened: Opened, refused: set[FileName]) -> _Parts:
    """Return the most KV that there are good files for on the store's disk."""
    geometry = model.geometry
    files = [name for name, file in opened.files.items() if file.path and FileName.block(name) not in refused]
    if geometry.resumes_anywhere:
        choice = choose(lookup, (), files)
        return _Parts(choice.tokens, [candidate.header for candidate in choice.warm])
    usable = [window for window in lookup.checkpoints if FileName.window(window.name) not in refused]
    stored = stored_tokens(usable, {name: file for name, file in opened.windows.items() if file.path})
    choice = choose(lookup, (), files, stored, geometry.window, exact=geometry.states is not None)
    if choice.checkpoint is None:
        return _Parts()
    window = choice.checkpoint.header(model.fingerprint, namespace, stored[choice.checkpoint.name])
    return _Parts(choice.tokens, [candidate.header for candidate in choice.warm], window)


def _header(manifest: Manifest, data: SpoolFile) -> bytes:
    hasher, at = xxhash.xxh3_128(), 0
    while piece := data.read(_HASH_BYTES, at):
        hasher.update(piece)
        at += len(piece)
    return header.encode(manifest, hasher.digest())
