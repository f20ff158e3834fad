"""A portable file as it comes in, and into the store: its KV as files under the names of its new namespace, its ledger
as an agent.

The KV is taken as it is, and not computed again to compare. So whoever may import into a namespace is trusted by all
that use the namespace, as is whoever runs a worker.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from agentmem.errors import AgentmemError, AlreadyExists, FailedPrecondition, PermissionDenied
from agentmem.kv.blockfile import BlockHeader, FileName
from agentmem.kv.ledger import NO_VERSION, ordered
from agentmem.process import logs
from agentmem.validation import AgentKey
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.models.loaded import LoadedModel
from inference_service.portable import header, spool
from inference_service.portable.format import (
    KVGeometry,
    Manifest,
    damaged,
    kv_geometry,
    layers_of,
    state_tensor,
    state_tensors,
)
from inference_service.portable.spool import Spool, SpoolFile
from inference_service.storage import transport
from inference_service.storage.client import StoreClient

log = logging.getLogger(__name__)

_PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class Received:
    """A file whose every byte was verified: what it says, and its data. Close that."""

    manifest: Manifest
    data: SpoolFile


async def receive(chunks: AsyncIterator[bytes], spool: Spool, check: Callable[[Manifest], Awaitable[None]]) -> Received:
    """Spool and verify the whole file. `check` raises for one that is not welcome, before its data is taken.

    Raises DataLoss for a file that is not as it was exported, FailedPrecondition for another version of the format,
    ResourceExhausted where the disk lacks room, and what `check` raises. Event loop; files on other threads.
    """
    beginning = bytearray()
    manifest, checksum = await _read_header(chunks, beginning)
    await check(manifest)
    data = await asyncio.to_thread(spool.file, manifest.data_bytes)
    try:
        await _read_data(chunks, beginning, manifest.data_bytes, checksum, data)
    except BaseException:
        data.close()
        raise
    return Received(manifest, data)


@dataclass(eq=False)
class Importer:
    """Makes agents of received files. Event loop; files on other threads."""

    _store: StoreClient

    async def check_absent(self, key: AgentKey) -> None:
        """Raise AlreadyExists if there is such an agent."""
        if (await self._store.open(key, peek=True)).version != NO_VERSION:
            raise AlreadyExists(f"agent {key.agent_id!r} exists; delete it, or choose another id")

    async def create(self, key: AgentKey, model: LoadedModel, received: Received) -> None:
        """Publish the KV, and then create the agent. Call it under the agent's lock, with what `check_fit` has passed.

        Raises AlreadyExists; ResourceExhausted where the store has no room, and DataLoss, then there is no agent.
        """
        await self.check_absent(key)
        manifest = received.manifest
        files = {}
        if not kv_misfit(manifest, model):
            files = await asyncio.to_thread(_files, key.namespace, model, manifest)
            await self._publish(key, model, received, files)
        version = await self._store.create_agent(key, manifest.ledger, manifest.context_policy)
        try:
            await self._store.publish(key, version, (), files, model.fingerprint)
        except AgentmemError as error:  # The agent is durable, and its files are found by their names.
            logs.event(log, "references of an import were not written", logging.WARNING, error=error.message)

    async def _publish(
        self, key: AgentKey, model: LoadedModel, received: Received, files: dict[FileName, BlockHeader]
    ) -> None:
        """Write those files that do not exist yet, and publish them without an agent."""

        def read(part: BlockHeader) -> dict[str, bytes]:
            places, layers = received.manifest.places, layers_of(model.geometry, window=part.window)
            states = spool.read_states(received.data, places, state_tensors(model.geometry)) if part.window else {}
            kv = spool.read(received.data, places, layers, part.first_token, part.token_count)
            return {**kv, **states}

        ledger = received.manifest.ledger
        paths = await self._store.stage(key.namespace, files)
        try:
            written = []
            for name, path in paths.items():
                header = files[name]
                own = ledger.token_ids[header.first_token : header.first_token + header.token_count]
                tensors = await asyncio.to_thread(read, header)
                written.append(
                    await transport.write(path, header, tensors, model.geometry, b"" if header.window else ordered(own))
                )
            if written:
                await self._store.publish(key, NO_VERSION, written, (), model.fingerprint)
        except BaseException:
            await transport.abandon(paths.values())
            raise


def check_namespace(manifest: Manifest, namespace: str) -> None:
    """Raise PermissionDenied for another namespace's file."""
    if manifest.key.namespace != namespace:
        raise PermissionDenied(
            f"the file is from the namespace {manifest.key.namespace!r} and yours is {namespace!r}; import it with "
            "credentials for the one it is from"
        )


def check_fit(manifest: Manifest, model: LoadedModel) -> None:
    """Raise FailedPrecondition for what was computed by another model than this, with the reason.

    The same model with other KV fits; see `kv_misfit`. Raises DataLoss for a ledger whose tokens the model's tokenizer
    would decode otherwise.
    """
    if manifest.model_fingerprint not in ("", model.model_fingerprint):
        raise FailedPrecondition(
            f"the file is of a model with the fingerprint {manifest.model_fingerprint[:12]!r}…, and model "
            f"{model.model_id!r} here has {model.model_fingerprint[:12]!r}…: other weights, another adapter or dtype; "
            "import it where the same model runs"
        )
    ledger = manifest.ledger
    if len(ledger) and ledger.tokenizer_hash != model.tokenizer.hash:
        raise FailedPrecondition(
            f"the file's tokens were made by another tokenizer than that of model {model.model_id!r} here; import it "
            "where the same tokenizer is used"
        )
    if len(ledger) > model.context_length:
        raise FailedPrecondition(
            f"the file has {len(ledger)} tokens and the model's context holds {model.context_length} here; fork the "
            "agent's first tokens, and export the fork"
        )
    if ledger.token_ids.max(initial=0) >= model.vocab_size:
        raise damaged("it has tokens that the model does not know")
    pieces = model.tokenizer.pieces(ledger.token_ids)
    if b"".join(pieces) != ledger.text or not np.array_equal(np.cumsum([*map(len, pieces)]), ledger.offsets):
        raise damaged("its text is not what its tokens stand for")


def kv_misfit(manifest: Manifest, model: LoadedModel) -> str:
    """Why a file's KV is not taken, though its ledger is; empty where it is."""
    here = kv_geometry(model.geometry)
    if not manifest.geometry.states:
        if manifest.kv_tokens and here.states:
            return f"it lacks the recurrent layers' states, without which model {model.model_id!r} cannot go on from KV"
        here = replace(here, states=())
    if manifest.geometry != here:
        both = zip(_parts(manifest.geometry), _parts(here), strict=False)
        found, wanted = next(pair for pair in both if pair[0] != pair[1])
        return f"the file's KV has {found}, and model {model.model_id!r} here {wanted}"
    if manifest.fingerprint == model.fingerprint:
        return ""
    if not manifest.model_fingerprint:
        return "the file is of an older version, whose KV is quantized otherwise"
    if manifest.calibration != (model.calibration.portable if model.calibration else b""):
        return f"its K and V are packed with other means or bases than those that model {model.model_id!r} has here"
    return "its KV is of another format"


async def _read_header(chunks: AsyncIterator[bytes], beginning: bytearray) -> tuple[Manifest, bytes]:
    """Return what the header says, and the tensors' checksum; what came behind it stays in `beginning`."""
    size: int | None = None
    async for chunk in chunks:
        beginning += chunk
        if size is None and len(beginning) >= header.LENGTH_BYTES:
            size = header.header_bytes(beginning)
        if size is not None and len(beginning) >= size:
            text = bytes(beginning[header.LENGTH_BYTES : size])
            del beginning[:size]
            return await asyncio.to_thread(header.parse, text)
    raise damaged("it ends inside its header")


async def _read_data(
    chunks: AsyncIterator[bytes], waiting: bytearray, size: int, checksum: bytes, data: SpoolFile
) -> None:
    """Write `waiting` and what follows it, and raise DataLoss unless it has this size in bytes and this checksum."""
    hasher, written = xxhash.xxh3_128(), 0

    def write(piece: bytes) -> None:
        hasher.update(piece)
        data.write(piece, written)

    async for chunk in chunks:
        waiting += chunk
        if written + len(waiting) > size:
            break
        if len(waiting) >= _PIECE_BYTES:
            await asyncio.to_thread(write, bytes(waiting))
            written += len(waiting)
            waiting.clear()
    if written + len(waiting) != size:
        raise damaged("it goes on behind its end" if written + len(waiting) > size else "it ends too early")
    await asyncio.to_thread(write, bytes(waiting))
    if hasher.digest() != checksum:
        raise damaged("the tensors' checksum is another")


def _parts(geometry: KVGeometry) -> list[str]:
    """Return what two geometries may differ in, in words."""
    settings = [f"{name} {getattr(geometry, name)}" for name in ("dtype", "bits", "group_size")]
    layers = [f"layer {number} with {layer._asdict()}" for number, layer in enumerate(geometry.layers)]
    arrays = [
        f"{state_tensor(number, i)} of {array.dtype} {list(array.shape)}"
        for number, each in enumerate(geometry.states)
        for i, array in enumerate(each)
    ]
    states = [f"{len(geometry.states)} recurrent layers", f"{len(arrays)} arrays of states"]
    return [*settings, f"{len(layers)} layers", *layers, *states, *arrays]


def _files(namespace: str, model: LoadedModel, manifest: Manifest) -> dict[FileName, BlockHeader]:
    """Return the headers of all files that the KV makes."""
    ids = model.fingerprint, namespace, manifest.ledger.token_ids[: manifest.kv_tokens]
    files = list(headers(*ids))
    if files and not model.geometry.resumes_anywhere:
        sliding = layers_of(model.geometry, window=True)
        first = max((manifest.first_positions[layers[0]] for layers in sliding.values()), default=0)
        files += checkpoint_headers(*ids, {manifest.kv_tokens: manifest.kv_tokens - first})
    return {FileName.of(file): file for file in files}
