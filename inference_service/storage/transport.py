"""How files of KV travel between the worker and the store: by path, or as streams of bytes.

Which of the two it is is tried, and never guessed from how paths look.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from agentmem import errors
from agentmem.kv.blockfile import BlockHeader, FileName
from agentmem.kv.ledger import Version
from agentmem.process import logs
from agentmem.process.shielding import run_shielded
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry, HostBuffers, HostTensors, TensorBytes
from inference_service.metrics import WorkerMetrics
from inference_service.storage.blocks import (
    BlockMiss,
    build,
    read_block,
    read_into,
    verified,
    verified_into,
    write_block,
)
from inference_service.storage.client import StoreClient

log = logging.getLogger(__name__)

Mode = Literal["auto", "path", "stream"]

READERS_AT_ONCE = 8
"""Threads that read files for one caller. A few of them fill the memory's bandwidth, or a disk's queue."""

STREAMS_AT_ONCE = 4
"""More do not make one connection faster, and each takes turns of the event loop."""

Into = Callable[[BlockHeader], HostBuffers | None]
"""The memory that a block's file is read into; None: new memory."""


def nowhere(header: BlockHeader) -> None:
    """There is no such memory."""


File = tuple[BlockHeader, pb.StoredFile]
"""A published file, and the header that it must have."""


class Written(NamedTuple):
    """A file that was handed to the store. Where it is not `published`, PublishBlocks has to name it."""

    file: pb.StoredFile
    published: bool


class Target(NamedTuple):
    """Whose state a file is a part of, and the path that StageBlocks gave for it; of a block its tokens, `ordered`."""

    key: AgentKey
    version: Version
    path: str
    token_ids: bytes = b""


class Transport(ABC):
    """Reads and writes files of KV. Event loop; hashing and disks on its default threads (see `threads`).

    Any number of calls at once. Both kinds verify what they read in the same way: the digest of all bytes, and the
    header against what is wanted.
    """

    name: ClassVar[str]

    @abstractmethod
    async def read_all(
        self, files: Sequence[File], geometry: Geometry, into: Into = nowhere
    ) -> list[HostTensors | BlockMiss]:
        """Return the tensors of each file in order, or why it cannot be used. Cancelled, it reads no more files, and
        ends when nothing is written to the caller's memory any more.

        Blocks are read `into` memory, where it has some for them; then there are no tensors to return. In that of one
        that is a miss is anything.
        """

    @abstractmethod
    async def write(self, target: Target, header: BlockHeader, tensors: TensorBytes, geometry: Geometry) -> Written:
        """Hand a file to the store, durably. Raises AgentmemError, OSError."""

    @abstractmethod
    async def abandon(self, paths: Iterable[str]) -> None:
        """Remove what was written for these and will not be published: the disk may be full already."""


class PathTransport(Transport):
    """Opens the store's files: they are on this machine's disk, too."""

    name = "path"

    async def read_all(
        self, files: Sequence[File], geometry: Geometry, into: Into = nowhere
    ) -> list[HostTensors | BlockMiss]:
        """Read by a few threads, each of which takes the next file when it is through with one."""
        todo, found = deque(enumerate(files)), dict[int, HostTensors | BlockMiss]()
        stopped = threading.Event()

        def read_some() -> None:
            while not stopped.is_set():
                try:
                    index, (header, file) = todo.popleft()
                except IndexError:
                    return
                try:
                    if header.window or (buffers := into(header)) is None:
                        found[index] = read_block(file.path, header, file.digest, geometry)
                    else:
                        read_into(file.path, header, file.digest, geometry, buffers)
                        found[index] = {}
                except BlockMiss as miss:
                    found[index] = miss.with_traceback(None)  # It holds the memory of all rows.

        work = asyncio.gather(*(asyncio.to_thread(read_some) for _ in range(min(len(files), READERS_AT_ONCE))))
        try:
            await asyncio.shield(work)
        finally:
            stopped.set()
            await asyncio.wait([work])
        return [found.pop(index) for index in range(len(files))]

    async def write(self, target: Target, header: BlockHeader, tensors: TensorBytes, geometry: Geometry) -> Written:
        """Write it in staging; the store makes it durable."""
        digest, size = await asyncio.to_thread(write_block, target.path, header, tensors, geometry)
        return Written(_description(header, digest, size, target), published=False)

    async def abandon(self, paths: Iterable[str]) -> None:
        """Unlink them."""
        await asyncio.to_thread(_remove, paths)


class StreamTransport(Transport):
    """Receives files into memory and sends them from it; no disk is shared, and none of the worker's is used."""

    name = "stream"

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._streams = asyncio.Semaphore(STREAMS_AT_ONCE)

    async def read_all(
        self, files: Sequence[File], geometry: Geometry, into: Into = nowhere
    ) -> list[HostTensors | BlockMiss]:
        """Read a few at once."""
        return await asyncio.gather(*(self._read(*file, geometry, into) for file in files))

    async def _read(
        self, wanted: BlockHeader, file: pb.StoredFile, geometry: Geometry, into: Into
    ) -> HostTensors | BlockMiss:
        """Receive it whole, then verify it on another thread. A stream that fails is an I/O error: the file stays."""
        try:
            async with self._streams:
                data = await self._store.read_block(wanted.namespace, FileName.of(wanted), file.size_bytes)
            if wanted.window or (buffers := into(wanted)) is None:
                return await asyncio.to_thread(verified, data, wanted, file.digest, geometry)
            await run_shielded(asyncio.to_thread(verified_into, data, wanted, file.digest, geometry, buffers))
        except BlockMiss as miss:
            return miss
        except errors.NotFound:
            return BlockMiss(types_pb2.MISS_REASON_ABSENT, "missing")
        except errors.AgentmemError as error:
            return BlockMiss(types_pb2.MISS_REASON_IO_ERROR, "io_error", damaged=isinstance(error, errors.DataLoss))
        else:
            return {}

    async def write(self, target: Target, header: BlockHeader, tensors: TensorBytes, geometry: Geometry) -> Written:
        """Build it in memory and send it to the store, which publishes it."""
        built = await asyncio.to_thread(build, header, tensors, geometry)
        file = _description(header, built.digest, len(built.data), target._replace(path=""))
        described = pb.WriteBlockHeader(
            key=target.key.to_proto(), version=target.version.to_proto(), file=file, fingerprint=header.fingerprint
        )
        await self._store.write_block(described, built.data)
        return Written(file, published=True)

    async def abandon(self, paths: Iterable[str]) -> None:
        """Do nothing: there are no files, and what the store has taken is the agent's."""


def _description(header: BlockHeader, digest: bytes, size: int, target: Target) -> pb.StoredFile:
    return pb.StoredFile(
        chain_hash=header.chain_hash,
        kind=FileName.of(header).kind.to_proto(),
        path=target.path,
        digest=digest,
        size_bytes=size,
        first_token=header.first_token,
        token_count=header.token_count,
        token_ids=target.token_ids,
    )


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


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


def _no_probe(identity: pb.GetStoreResponse) -> str:
    try:
        with open(identity.probe_path, "rb") as file:
            found = file.read(len(identity.instance) + 1)
    except OSError as error:
        return f"the store's probe {identity.probe_path} cannot be read here: {error.strerror}"
    return "" if found == identity.instance else f"the probe {identity.probe_path} here is not this store's"


def _no_witness(identity: pb.GetStoreResponse, witness: Path) -> str:
    try:
        with open(witness, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(identity.instance)
    except OSError as error:
        return f"the store's staging directory {witness.parent} cannot be written here: {error.strerror}"
    return ""
