"""Files to and from a store as a node of a cluster sends and receives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agentmem.errors import AgentmemError, DataLoss
from agentmem.kv import blockfile
from agentmem.kv.blockfile import CHUNK_BYTES, BlockHeader, FileKind, FileName
from agentmem.kv.ledger import NO_VERSION, Version
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from cache_service.files.publication import Publication
from cache_service.files.references import FileRow
from cache_service.tiers.streams import BlockStreams
from tests.cache_service.tiers.test_blocks import on_disk

from . import kv
from .conftest import Running

LARGE = replace(kv.header(list(range(256))), token_count=25_000)
"""Described with so many tokens that its file has several chunks and several pieces."""


async def read(store: Running, file: pb.FileName, namespace: str = "default") -> bytes:
    """A file by stream."""
    call = store.cache.ReadBlock(pb.ReadBlockRequest(namespace=namespace, name=file))
    try:
        return b"".join([part.chunk async for part in call])
    finally:
        call.cancel()


@dataclass
class Described:
    """A file that is sent, and whose it is."""

    file: FileRow
    publication: Publication


def describe(
    header: BlockHeader,
    data: bytes,
    key: types_pb2.AgentKey | None = None,
    version: types_pb2.AgentVersion | None = None,
    fingerprint: str = kv.FINGERPRINT,
) -> Described:
    """Return a description that is true of `data`: a part of the agent's state of this version."""
    kind = FileKind.WINDOW if header.window else FileKind.BLOCK
    sizes = header.first_token, header.token_count, len(data), blockfile.digest(data), b""
    state = NO_VERSION if version is None else Version.from_proto(version)
    return Described(
        FileRow(FileName(kind, header.chain_hash), *sizes),
        Publication(AgentKey.from_proto(key or kv.key()), state, (), None, fingerprint),
    )


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


async def send(store: Running, described: Described, sent: AsyncIterator[bytes]) -> None:
    """Have the store take a file in, as it does one that another node has."""
    streams = BlockStreams(store.store._directory, store.store._rows, store.store._blocks)
    try:
        await streams.write(described.file, described.publication, sent)
    finally:
        await asyncio.to_thread(streams.close)


async def write(store: Running, described: Described, data: bytes) -> None:
    await send(store, described, chunks(data))


async def arrive(store: Running, header: BlockHeader, **described: Any) -> bytes:
    """Have a file arrive that is as it is described."""
    data = kv.content(header)
    await write(store, describe(header, data, **described), data)
    return data


async def refused(store: Running, described: Described, data: bytes, error: type[AgentmemError] = DataLoss) -> str:
    """Return how a file is refused; nothing is left of it anywhere."""
    with pytest.raises(error) as caught:
        await write(store, described, data)
    assert on_disk(store.data) == []
    return str(caught.value)


async def emptied(directory: Path) -> None:
    """Wait until nothing is in a directory."""
    async with asyncio.timeout(20):
        while list(directory.iterdir()):
            await asyncio.sleep(0.005)
