"""A portable file into the store: files of KV as they are, and the ledger as an agent.

KV is not computed to compare: importers into a namespace are trusted by its users.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agentmem.errors import (
    AgentmemError,
    AlreadyExists,
    FailedPrecondition,
    PermissionDenied,
    ResourceExhausted,
    is_disk_full,
)
from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, BlockHeader, FileName, chain_hash
from agentmem.kv.ledger import NO_VERSION, ordered
from agentmem.process import logs
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.sequence import SLACK
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.models.loaded import LoadedModel
from inference_service.portable.format import Manifest, Parts, damaged
from inference_service.storage import transport
from inference_service.storage.blocks import BlockMiss, most_bytes, verified, write_new
from inference_service.storage.client import StoreClient

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
_EXPONENTS = {"F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80), "F32": (np.uint32, 0x7F800000)}
"""All set if a float is not finite."""


@dataclass(frozen=True)
class Received:
    """A verified file's manifest, its files of KV, and those in staging."""

    manifest: Manifest
    names: list[FileName] = field(default_factory=list)
    staged: list[pb.StoredFile] = field(default_factory=list)


@dataclass(eq=False)
class Importer:
    """Event loop; files on other threads."""

    _store: StoreClient

    async def check_absent(self, key: AgentKey) -> None:
        """Raises AlreadyExists."""
        if (await self._store.open(key, peek=True)).version != NO_VERSION:
            raise AlreadyExists(f"agent {key.agent_id!r} exists; delete it, or choose another id")

    async def receive(self, parts: Parts, manifest: Manifest, geometry: Geometry | None) -> Received:
        """Verify the other parts, and stage files unless there is no geometry. Raises DataLoss and ResourceExhausted,
        leaving nothing.
        """
        received, count = Received(manifest), 0
        expected = _Expected(manifest)
        try:
            while (part := await parts.part()).HasField("file"):
                count += 1
                if geometry is None:
                    await parts.skip(part.file.size_bytes)
                else:
                    header = expected.next(part.file, geometry)
                    if part.file.size_bytes > most_bytes(header, geometry):
                        raise damaged("a file of KV is too long")
                    data = await parts.take(part.file.size_bytes)
                    await self._take(received, header, part.file, data, geometry)
            if part.WhichOneof("part") != "end" or part.end.files != count:
                raise damaged("it lacks files")
            await parts.end()
        except BaseException:
            await self.abandon(received)
            raise
        return received

    async def abandon(self, received: Received) -> None:
        await transport.abandon(file.path for file in received.staged)

    async def create(self, key: AgentKey, model: LoadedModel, received: Received) -> None:
        """Publish KV, then create the agent, under its lock, after `check_fit`. Raises AlreadyExists, ResourceExhausted
        and DataLoss, without an agent.
        """
        await self.check_absent(key)
        manifest = received.manifest
        fits = not kv_misfit(manifest, model)
        if fits and received.staged:
            await self._store.publish(key, NO_VERSION, received.staged, (), model.fingerprint)
        version = await self._store.create_agent(key, manifest.ledger, manifest.context_policy)
        try:
            await self._store.publish(key, version, (), received.names if fits else (), model.fingerprint)
        except AgentmemError as error:  # The agent is durable, and files are found by name.
            logs.event(log, "references of an import were not written", logging.WARNING, error=error.message)

    async def _take(
        self, received: Received, header: BlockHeader, file: pb.StoredFile, data: bytes, geometry: Geometry
    ) -> None:
        await asyncio.to_thread(_check, data, header, file.digest, geometry)
        name = FileName.of(header)
        received.names.append(name)
        for path in (await self._store.stage(header.namespace, [name])).values():
            tokens = received.manifest.ledger.token_ids[header.first_token : header.first_token + header.token_count]
            ids = b"" if header.window else ordered(tokens)
            received.staged.append(transport.described(path, header, file.digest, len(data), ids))
            with _disk_errors():
                await asyncio.to_thread(write_new, path, [data])


class _Expected:
    """Headers of a ledger's files of KV, in order."""

    def __init__(self, manifest: Manifest) -> None:
        self._ids = manifest.fingerprint, manifest.key.namespace
        self._tokens = manifest.ledger.token_ids
        self._parent, self._end = NO_PARENT, 0
        self._is_last = False

    def next(self, file: pb.StoredFile, geometry: Geometry) -> BlockHeader:
        """Raises DataLoss if the file cannot come next."""
        first, count, end = file.first_token, file.token_count, file.first_token + file.token_count
        if self._is_last or not count or end > len(self._tokens):
            raise damaged("its files of KV are not in order")
        if file.kind == pb.FILE_KIND_WINDOW:
            self._is_last = True
            if geometry.resumes_anywhere or (geometry.sliding and count > geometry.window + SLACK):
                raise damaged("it has a checkpoint that the model does not keep")
            (header,) = checkpoint_headers(*self._ids, self._tokens, {end: count})
        else:
            name = chain_hash(*self._ids, self._parent, self._tokens[first:end])
            header = BlockHeader(*self._ids, name, self._parent, first, count)
            if first != self._end or first % BLOCK_TOKENS or count > BLOCK_TOKENS:
                raise damaged("its blocks are not in order")
            self._parent, self._end = name, end
        if header.chain_hash != file.chain_hash:
            raise damaged("a file of KV is not of its tokens")
        return header


def _check(data: bytes, header: BlockHeader, digest: bytes, geometry: Geometry) -> None:
    """Raises DataLoss for a damaged file and for numbers that are not finite."""
    try:
        tensors = verified(data, header, digest, geometry)
    except BlockMiss as miss:
        raise damaged(f"a file of KV has another {miss.fault}") from miss
    shapes = (geometry.checkpoint_shapes if header.window else geometry.block_shapes)(header.token_count)
    for name, (dtype, _) in shapes.items():
        if not _is_finite(tensors[name], dtype):
            raise damaged(f"some numbers of {name} are not finite")


def _is_finite(data: npt.NDArray[np.generic], dtype: str) -> bool:
    if dtype not in _EXPONENTS:
        return True
    bits, exponent = _EXPONENTS[dtype]
    return bool(((data.view(bits) & exponent) != exponent).all())


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise ResourceExhausted for a full disk or quota."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise ResourceExhausted("the disk is full; make room on it", RETRY_SECONDS) from error
        raise


def check_namespace(manifest: Manifest, namespace: str) -> None:
    """Raise PermissionDenied for another namespace's file."""
    if manifest.key.namespace != namespace:
        raise PermissionDenied(
            f"the file is from the namespace {manifest.key.namespace!r} and yours is {namespace!r}; import it with "
            "credentials for the one it is from"
        )


def check_fit(manifest: Manifest, model: LoadedModel) -> None:
    """Raise FailedPrecondition for another model's file, whatever its KV (`kv_misfit`), and DataLoss for a ledger that
    would be decoded otherwise.
    """
    if manifest.model_fingerprint != model.model_fingerprint:
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
    """Return why KV of a fitting file is not taken, or ""."""
    if manifest.fingerprint == model.fingerprint:
        return ""
    bits = str(model.geometry.format.bits)
    if manifest.kv_bits != bits:
        return f"the file's KV has {manifest.kv_bits} bits, and that of model {model.model_id!r} here {bits}"
    if manifest.calibration != (model.calibration.portable if model.calibration else b""):
        return f"its K and V are packed with other means or bases than those that model {model.model_id!r} has here"
    return "its KV is of another format"
