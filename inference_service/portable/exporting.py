"""An agent's ledger and files of KV into one portable file.

What KV is missing or bad shortens the exported KV and fails nothing: the ledger is always whole. The file has no place
for recurrent layers' states, without which KV is of no use; so an agent of a model with such layers goes without KV.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import xxhash

from agentmem.blockfile import CHUNK_BYTES, BlockHeader
from agentmem.errors import NotFound
from agentmem.identity import FileName
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry
from inference_service.memory.restore import headers
from inference_service.memory.windows import WindowCandidate, candidates_at, choose_window, stored_tokens
from inference_service.models.loaded import LoadedModel
from inference_service.portable import header, spool
from inference_service.portable.format import Manifest, kv_geometry, layers_of
from inference_service.portable.spool import Spool, SpoolFile
from inference_service.storage.client import Opened, StoreClient
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
        """Yield all of it, in order, in pieces of at most CHUNK_BYTES."""
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

    def first_positions(self, geometry: Geometry) -> tuple[int, ...]:
        """Return where the KV of each layer begins; () if there is none."""
        first = dict.fromkeys(range(geometry.layers if self.tokens else 0), 0)
        if self.window is not None:
            first |= dict.fromkeys(layers_of(geometry, window=True), self.window.first_token)
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
        ids = model.fingerprint, key.namespace, ledger.token_ids
        ends = {turn.end_token for turn in ledger.turns[-_NEAREST_TURNS:]} | {len(ledger)}

        def names() -> tuple[list[BlockHeader], tuple[WindowCandidate, ...]]:
            return list(headers(*ids)), candidates_at(*ids, ends - {0}) if model.geometry.sliding else ()

        blocks, windows = await asyncio.to_thread(names)
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
            firsts = parts.first_positions(model.geometry)
            manifest = Manifest(
                key,
                model.fingerprint,
                geometry,
                ledger,
                parts.tokens,
                firsts,
                context_policy=agent.context_policy,
                model_fingerprint=model.model_fingerprint,
                calibration=model.calibration.bytes if model.calibration else b"",
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
        return None


def _choose(
    namespace: str,
    model: LoadedModel,
    blocks: Sequence[BlockHeader],
    windows: Sequence[WindowCandidate],
    opened: Opened,
    refused: set[FileName],
) -> _Parts:
    """Return the most KV that there are good files for."""
    if model.geometry.states is not None:
        return _Parts()
    there = list(takewhile(lambda each: each.chain_hash in opened.files and FileName.of(each) not in refused, blocks))
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


def _header(manifest: Manifest, data: SpoolFile) -> bytes:
    hasher, at = xxhash.xxh3_128(), 0
    while piece := data.read(_HASH_BYTES, at):
        hasher.update(piece)
        at += len(piece)
    return header.encode(manifest, hasher.digest())
