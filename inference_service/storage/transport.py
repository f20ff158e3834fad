"""Files of KV on the disk shared with the store."""

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from agentmem.kv.blockfile import BlockHeader, FileName
from agentmem.v1 import cache_store_pb2 as pb
from inference_service.engine.geometry import Geometry, HostBuffers, HostTensors, TensorBytes
from inference_service.storage.blocks import BlockMiss, read_block, read_into, write_block
from inference_service.storage.client import StoreClient

READERS_AT_ONCE = 8
"""A few fill the memory's bandwidth, or a disk's queue."""

Into = Callable[[BlockHeader], HostBuffers | None]
"""Memory for a block's file; None: new memory."""


def nowhere(header: BlockHeader) -> None:
    """There is no such memory."""


File = tuple[BlockHeader, pb.StoredFile]
"""A published file and its header."""


async def read_all(files: Sequence[File], geometry: Geometry, into: Into = nowhere) -> list[HostTensors | BlockMiss]:
    """Return verified tensors in order, or misses. Event loop; files on its threads.

    Blocks read `into` memory return no tensors. Cancelled, it ends when that memory is not written any more.
    """
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
                found[index] = miss.with_traceback(None)  # It holds all rows' memory.

    work = asyncio.gather(*(asyncio.to_thread(read_some) for _ in range(min(len(files), READERS_AT_ONCE))))
    try:
        await asyncio.shield(work)
    finally:
        stopped.set()
        await asyncio.wait([work])
    return [found.pop(index) for index in range(len(files))]


async def write(
    path: str, header: BlockHeader, tensors: TensorBytes, geometry: Geometry, token_ids: bytes = b""
) -> pb.StoredFile:
    """Write a staged file for PublishBlocks, with a block's `ordered` tokens. Raises OSError."""
    digest, size = await asyncio.to_thread(write_block, path, header, tensors, geometry)
    return described(path, header, digest, size, token_ids)


def described(path: str, header: BlockHeader, digest: bytes, size: int, token_ids: bytes) -> pb.StoredFile:
    return pb.StoredFile(
        chain_hash=header.chain_hash,
        kind=FileName.of(header).kind.to_proto(),
        path=path,
        digest=digest,
        size_bytes=size,
        first_token=header.first_token,
        token_count=header.token_count,
        token_ids=token_ids,
    )


async def abandon(paths: Iterable[str]) -> None:
    """Remove unpublished files: the disk may be full."""
    await asyncio.to_thread(_remove, paths)


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


async def disk_problem(store: StoreClient) -> str:
    """Return why files cannot be shared with the store here, or "". Raises AgentmemError."""
    return await asyncio.to_thread(_disk_problem, await store.identify())


def _disk_problem(store: pb.GetStoreResponse) -> str:
    try:
        with open(store.probe_path, "rb") as file:
            found = file.read(len(store.instance) + 1)
    except OSError as error:
        return f"the store's file {store.probe_path} cannot be read here ({error.strerror}): mount its data directory"
    if found != store.instance:
        return f"{store.probe_path} here is not the store's file: mount its data directory at this path"
    if not os.access(store.staging_directory, os.W_OK | os.X_OK):
        return f"the store's directory {store.staging_directory} cannot be written here"
    return ""
