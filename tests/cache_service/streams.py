"""What a worker that streams sends and receives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem.kv import blockfile
from agentmem.kv.blockfile import CHUNK_BYTES, BlockHeader
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
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


def describe(
    header: BlockHeader, data: bytes, key: types_pb2.AgentKey | None = None, **fields: Any
) -> pb.WriteBlockHeader:
    """The header of a stream, true of `data` where `fields` say nothing else of the file."""
    file = pb.StoredFile(
        chain_hash=header.chain_hash,
        kind=pb.FILE_KIND_WINDOW if header.window else pb.FILE_KIND_BLOCK,
        digest=blockfile.digest(data),
        size_bytes=len(data),
        first_token=header.first_token,
        token_count=header.token_count,
    )
    file.MergeFrom(pb.StoredFile(**fields))
    return pb.WriteBlockHeader(key=key or kv.key(), file=file, fingerprint=kv.FINGERPRINT)


def parts(header: pb.WriteBlockHeader, data: bytes) -> Iterator[pb.WriteBlockRequest]:
    """A whole stream."""
    yield pb.WriteBlockRequest(header=header)
    for start in range(0, len(data), CHUNK_BYTES):
        yield pb.WriteBlockRequest(chunk=data[start : start + CHUNK_BYTES])


async def write(store: Running, header: pb.WriteBlockHeader, data: bytes) -> None:
    """A file by stream."""
    await store.cache.WriteBlock(parts(header, data))


async def refused(store: Running, requests: Any) -> pytest.ExceptionInfo[grpc.aio.AioRpcError]:
    """The error that a stream ends with; nothing is left of it anywhere."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await store.cache.WriteBlock(requests)
    assert on_disk(store.data) == []
    return error


async def emptied(directory: Path) -> None:
    """Wait until nothing is in a directory."""
    async with asyncio.timeout(20):
        while list(directory.iterdir()):
            await asyncio.sleep(0.005)
