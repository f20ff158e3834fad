"""Files of KV, read and written by path on the disk that the worker shares with the store."""

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
"""Threads that read files for one caller: a few fill the memory's bandwidth, or a disk's queue."""

Into = Callable[[BlockHeader], HostBuffers | None]
"""The memory that a block's file is read into; None: new memory."""


def nowhere(header: BlockHeader) -> None:
    """There is no such memory."""


File = tuple[BlockHeader, pb.StoredFile]
"""A published file, and the header that it must have."""


async def read_all(files: Sequence[File], geometry: Geometry, into: Into = nowhere) -> list[HostTensors | BlockMiss]:
    """Return the verified tensors of each file in order, or why it cannot be used. Event loop; files on its threads.

    Blocks read `into` memory return no tensors; a miss leaves anything there. Cancelled, it ends when nothing is
    written to that memory any more.
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
                found[index] = miss.with_traceback(None)  # It holds the memory of all rows.

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
    """Write a file to the path that StageBlocks gave; return it for PublishBlocks. Raises OSError. `token_ids` are
    those of a block, `ordered`.
    """
    digest, size = await asyncio.to_thread(write_block, path, header, tensors, geometry)
    return described(path, header, digest, size, token_ids)


def described(path: str, header: BlockHeader, digest: bytes, size: int, token_ids: bytes) -> pb.StoredFile:
    """Return a written file for PublishBlocks."""
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
    """Remove unpublished files: the disk may be full already."""
    await asyncio.to_thread(_remove, paths)


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


async def disk_problem(store: StoreClient) -> str:
    """Return why the store's files cannot be read and written by path here; "" where they can. Raises AgentmemError."""
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
