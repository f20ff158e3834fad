"""Whether files of KV can be opened by path, or have to be streamed: tried, never guessed from how paths look."""

import asyncio
import contextlib
import logging
import os
import secrets
from pathlib import Path
from typing import Literal

from agentmem import logs
from agentmem.v1.cache_store_pb2 import GetStoreResponse
from inference_service.metrics import WorkerMetrics
from inference_service.storage.client import StoreClient
from inference_service.storage.transport import PathTransport, StreamTransport, Transport

log = logging.getLogger(__name__)

Mode = Literal["auto", "path", "stream"]


class TransportSelector:
    """Selects the transport that reaches the store process that answers now. Event loop.

    Every answer of OpenCache and StageBlocks names the process; so where another one answers than before (another
    machine's, perhaps, behind the same socket), it is tried anew before a file is read or written.
    """

    def __init__(self, store: StoreClient, mode: Mode, metrics: WorkerMetrics) -> None:
        self._store = store
        self._mode = mode
        self._metrics = metrics
        self._path = PathTransport()
        self._stream = StreamTransport(store)
        self._selected: Transport | None = None
        self._instance = b""
        self._selecting = asyncio.Lock()

    async def current(self) -> Transport:
        """Return the transport to use. Asks the store where that is not known: raises AgentmemError."""
        async with self._selecting:
            if self._selected is None or (self._mode == "auto" and self._instance != self._store.instance):
                self._selected = await self._select()
            return self._selected

    async def refresh(self) -> None:
        """Select now, whichever process answered before: the store is there, or there again. Raises AgentmemError."""
        if self._mode == "auto":
            await self._store.identify()
        await self.current()

    async def _select(self) -> Transport:
        if self._mode == "auto":
            self._instance, problem = await no_shared_disk(self._store)
            selected, reason = (self._stream, problem) if problem else (self._path, "the worker sees the store's disk")
        else:
            selected, reason = (self._path if self._mode == "path" else self._stream), "--store-transfer says so"
        for transport in (self._path, self._stream):
            self._metrics.store_transfer.labels(transport.name).set(transport is selected)
        logs.event(log, "files of KV", transfer=selected.name, reason=reason)
        return selected


async def no_shared_disk(store: StoreClient) -> tuple[bytes, str]:
    """Return which store process answers, and why its files can't be opened by path here; "" if they can.

    Its probe must be here and hold its random name, and it must see what is written here in its staging directory.
    Raises AgentmemError if the store does not answer.
    """
    while True:
        identity = await store.identify()
        if problem := await asyncio.to_thread(_no_probe, identity):
            return identity.instance, problem
        witness = Path(identity.staging_directory) / f"witness-{secrets.token_hex(8)}"
        try:
            if problem := await asyncio.to_thread(_no_witness, identity, witness):
                return identity.instance, problem
            seen = await store.identify(str(witness))
        finally:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(witness.unlink)
        if seen.instance == identity.instance:
            problem = "" if seen.witness_seen else f"the store does not see what is written in {witness.parent} here"
            return identity.instance, problem


def _no_probe(identity: GetStoreResponse) -> str:
    try:
        with open(identity.probe_path, "rb") as file:
            found = file.read(len(identity.instance) + 1)
    except OSError as error:
        return f"the store's probe {identity.probe_path} cannot be read here: {error.strerror}"
    return "" if found == identity.instance else f"the probe {identity.probe_path} here is not this store's"


def _no_witness(identity: GetStoreResponse, witness: Path) -> str:
    try:
        with open(witness, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(identity.instance)
    except OSError as error:
        return f"the store's staging directory {witness.parent} cannot be written here: {error.strerror}"
    return ""
