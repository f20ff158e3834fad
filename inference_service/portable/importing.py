"""A portable file into the store: its KV as files under the names of its new namespace, its ledger as an agent.

The KV is taken as it is: nobody computes it again to compare. So whoever may import into a namespace is trusted by all
that use the namespace, as is whoever runs a worker.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import accumulate

from agentmem import logs
from agentmem.blockfile import BlockHeader
from agentmem.errors import AgentmemError, AlreadyExists, FailedPrecondition, PermissionDenied
from agentmem.keys import AgentKey
from inference_service.memory.ledger import NO_VERSION, Ledger
from inference_service.memory.restore import headers
from inference_service.memory.windows import window_headers
from inference_service.models.loading import LoadedModel
from inference_service.portable import tensors
from inference_service.portable.format import Manifest, damaged
from inference_service.portable.receiving import Received
from inference_service.portable.shapes import kv_geometry, layers_of
from inference_service.portable.spool import SpoolFile
from inference_service.storage.choosing import Transfers
from inference_service.storage.client import FileName, StoreClient
from inference_service.storage.transfer import Target

log = logging.getLogger(__name__)


class Importer:
    """Makes agents of received files. Event loop; files on other threads."""

    def __init__(self, store: StoreClient, transfers: Transfers) -> None:
        self._store = store
        self._transfers = transfers

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
        files = await asyncio.to_thread(_files, key.namespace, model, manifest)
        await self._publish(key, model, manifest, received.data, files)
        version = await self._store.create_agent(key, manifest.ledger, manifest.context_policy)
        try:
            await self._store.publish(key, version, (), map(FileName.of, files), model.fingerprint)
        except AgentmemError as error:  # The agent is durable, and its files are found by their names.
            logs.event(log, "references of an import were not written", logging.WARNING, error=error.message)

    async def _publish(
        self, key: AgentKey, model: LoadedModel, manifest: Manifest, data: SpoolFile, files: Sequence[BlockHeader]
    ) -> None:
        """Write those files that do not exist yet, and publish them as nobody's."""
        named = {FileName.of(file): file for file in files}
        paths = await self._store.stage(key.namespace, named)
        transfer = await self._transfers.current()
        done = False
        try:
            written = []
            for name, path in paths.items():
                found = await asyncio.to_thread(_read, data, manifest, named[name], model)
                written.append(await transfer.write(Target(key, NO_VERSION, path), named[name], found, model.geometry))
            if staged := [each.file for each in written if not each.published]:
                await self._store.publish(key, NO_VERSION, staged, (), model.fingerprint)
            done = True
        finally:
            if not done:
                await transfer.abandon(paths.values())


def check_namespace(manifest: Manifest, namespace: str) -> None:
    """Raise PermissionDenied for another namespace's file."""
    if manifest.key.namespace != namespace:
        raise PermissionDenied(
            f"the file is from the namespace {manifest.key.namespace!r} and yours is {namespace!r}; import it with "
            "credentials for the one it is from"
        )


def check_fit(manifest: Manifest, model: LoadedModel) -> None:
    """Raise FailedPrecondition for what was computed by another model than this, with the reason.

    DataLoss for a ledger that the model's tokenizer would not read like this.
    """
    geometry = kv_geometry(model.geometry)
    if manifest.geometry != geometry:
        found, wanted = _differing(manifest, model)
        raise FailedPrecondition(
            f"the file's KV has another geometry than model {model.model_id!r} here: {found} instead of {wanted}; "
            "import it where the same model runs with the same settings"
        )
    if manifest.fingerprint != model.fingerprint:
        raise FailedPrecondition(
            f"the file has the fingerprint {manifest.fingerprint[:12]!r}…, and model {model.model_id!r} here has "
            f"{model.fingerprint[:12]!r}…: other weights, or another adapter; import it where the same model runs"
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
    if max(ledger.token_ids, default=0) >= model.vocab_size:
        raise damaged("it has tokens that the model does not know")
    if not _is_read_as(ledger, model):
        raise damaged("its text is not what its tokens stand for")


def _differing(manifest: Manifest, model: LoadedModel) -> tuple[str, str]:
    """The first thing in which two geometries differ, on both sides."""
    found, wanted = manifest.geometry, kv_geometry(model.geometry)
    for name in ("dtype", "bits", "group_size"):
        if getattr(found, name) != getattr(wanted, name):
            return f"{name} {getattr(found, name)}", f"{getattr(wanted, name)}"
    if len(found.layers) != len(wanted.layers):
        return f"{len(found.layers)} layers", f"{len(wanted.layers)}"
    at = next(i for i, pair in enumerate(zip(found.layers, wanted.layers, strict=True)) if pair[0] != pair[1])
    return f"layer {at} with {found.layers[at]._asdict()}", f"{wanted.layers[at]._asdict()}"


def _is_read_as(ledger: Ledger, model: LoadedModel) -> bool:
    pieces = model.tokenizer.pieces(ledger.token_ids)
    return b"".join(pieces) == ledger.text and tuple(accumulate(map(len, pieces))) == ledger.offsets


def _files(namespace: str, model: LoadedModel, manifest: Manifest) -> list[BlockHeader]:
    """The headers of all files that the KV makes."""
    ids = model.fingerprint, namespace, manifest.ledger.token_ids[: manifest.kv_tokens]
    files = list(headers(*ids))
    if files and (sliding := layers_of(model.geometry, window=True)):
        stored = manifest.kv_tokens - manifest.first_positions[sliding[0]]
        files += window_headers(*ids, {manifest.kv_tokens: stored})
    return files


def _read(data: SpoolFile, manifest: Manifest, header: BlockHeader, model: LoadedModel) -> dict[str, bytes]:
    layers = layers_of(model.geometry, window=header.window)
    return tensors.read(data, manifest.places, layers, header.first_token, header.token_count)
