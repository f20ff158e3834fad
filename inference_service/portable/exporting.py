"""An agent's ledger and files of KV into one portable file.

What KV is missing or bad shortens the exported KV and fails nothing: the ledger is always whole.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import xxhash

from agentmem.blockfile import CHUNK_BYTES, BlockHeader
from agentmem.errors import NotFound
from agentmem.keys import AgentKey
from inference_service.engine.geometry import Geometry
from inference_service.memory.ledger import Ledger
from inference_service.memory.restore import headers
from inference_service.memory.windows import WindowCandidate, candidates_at, choose_window, stored_tokens
from inference_service.models.loading import LoadedModel
from inference_service.portable import header, tensors
from inference_service.portable.format import Manifest
from inference_service.portable.shapes import kv_geometry, layers_of
from inference_service.portable.spool import Spool, SpoolFile
from inference_service.storage.client import FileName, Opened, StoreClient
from inference_service.turns.fetching import Fetcher

_NEAREST_TURNS = 64
"""At the ends of how many turns, the last ones, to look for a window."""
_HASH_BYTES = 4 << 20


@dataclass(frozen=True)
class Exported:
    """A portable file: its header, and its data. Close that."""

    header: bytes
    data: SpoolFile

    async def chunks(self) -> AsyncIterator[bytes]:
        """All of it, in order, in pieces of at most CHUNK_BYTES."""
        for start in range(0, len(self.header), CHUNK_BYTES):
            yield self.header[start : start + CHUNK_BYTES]
        at = 0
        while chunk := await asyncio.to_thread(self.data.read, CHUNK_BYTES, at):
            yield chunk
            at += len(chunk)


@dataclass(frozen=True)
class _Parts:
    """What the file's KV is made of: `tokens` of it, in blocks, and for hybrid models a window."""

    tokens: int = 0
    blocks: Sequence[BlockHeader] = ()
    window: BlockHeader | None = None


class Exporter:
    """Collects agents. Event loop; files on other threads."""

    def __init__(self, store: StoreClient, fetcher: Fetcher, spool: Spool) -> None:
        self._store = store
        self._fetcher = fetcher
        self._spool = spool

    async def collect(self, key: AgentKey, model: LoadedModel) -> Exported:
        """The agent's present state as a file. Call it under the agent's lock.

        Raises NotFound, ResourceExhausted, and Unavailable where the store does not answer.
        """
        opened = await self._store.open(key, peek=True)
        ledger = opened.ledger
        if ledger is None:
            raise NotFound("agent", key.agent_id)
        policy = opened.context_policy
        blocks, windows = await asyncio.to_thread(_names, key.namespace, model, ledger)
        opened = await self._store.open(
            key._replace(agent_id=""),
            block_hashes=[block.chain_hash for block in blocks],
            window_hashes=[window.name for window in windows],
            peek=True,
        )
        geometry = kv_geometry(model.geometry)
        refused: set[FileName] = set()
        while True:
            parts = _choose(key.namespace, model, blocks, windows, opened, refused)
            firsts = _first_positions(model.geometry, parts)
            manifest = Manifest(key, model.fingerprint, geometry, ledger, parts.tokens, firsts, policy)
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
        """Put all parts where they belong; the one that is bad, if one is."""
        places = manifest.places
        for part in (*parts.blocks, *([parts.window] if parts.window is not None else [])):
            file = (opened.windows if part.window else opened.files)[part.chain_hash]
            good, _ = await self._fetcher.read(geometry, manifest.key.namespace, manifest.key.model_id, [(part, file)])
            name = FileName.of(part)
            if name not in good:
                return name
            tokens = min(part.token_count, parts.tokens - part.first_token)
            layers = layers_of(geometry, window=part.window)
            await asyncio.to_thread(tensors.write, data, places, layers, part.first_token, tokens, good[name])
        return None


def _names(namespace: str, model: LoadedModel, ledger: Ledger) -> tuple[list[BlockHeader], tuple[WindowCandidate, ...]]:
    ids = model.fingerprint, namespace, ledger.token_ids
    blocks = list(headers(*ids))
    if model.geometry.sliding is None:
        return blocks, ()
    ends = [turn.end_token for turn in ledger.turns[-_NEAREST_TURNS:]]
    return blocks, candidates_at(*ids, {end for end in (*ends, len(ledger)) if end})


def _choose(
    namespace: str,
    model: LoadedModel,
    blocks: Sequence[BlockHeader],
    windows: Sequence[WindowCandidate],
    opened: Opened,
    refused: set[FileName],
) -> _Parts:
    """The most KV that there are good files for."""
    there = list(
        takewhile(
            lambda block: block.chain_hash in opened.files and FileName.block(block.chain_hash) not in refused, blocks
        )
    )
    tokens = sum(block.token_count for block in there)
    sliding = model.geometry.sliding
    if sliding is None or sliding.window is None:
        return _Parts(tokens, there)
    usable = [window for window in windows if FileName.window(window.name) not in refused]
    stored = stored_tokens(usable, opened.windows)
    best = choose_window(usable, stored, sliding.window, tokens)
    if best is None:
        return _Parts()
    window, tokens = best
    needed = [block for block in there if block.first_token < tokens]
    return _Parts(tokens, needed, window.header(model.fingerprint, namespace, stored[window.name]))


def _first_positions(geometry: Geometry, parts: _Parts) -> tuple[int, ...]:
    if not parts.tokens:
        return ()
    first = {layer: 0 for layer in geometry.full.layers}
    if parts.window is not None:
        first |= dict.fromkeys(layers_of(geometry, window=True), parts.window.first_token)
    return tuple(first[layer] for layer in range(geometry.layers))


def _header(manifest: Manifest, data: SpoolFile) -> bytes:
    hasher, at = xxhash.xxh3_128(), 0
    while piece := data.read(_HASH_BYTES, at):
        hasher.update(piece)
        at += len(piece)
    return header.encode(manifest, hasher.digest())
