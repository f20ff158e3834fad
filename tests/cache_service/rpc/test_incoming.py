"""What WriteBlock refuses, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from agentmem.channels import connect
from agentmem.kv import blockfile
from agentmem.kv.blockfile import CHUNK_BYTES
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from cache_service.files import publication
from cache_service.files.publication import Spool
from cache_service.rpc import cache_store
from tests.cache_service import kv
from tests.cache_service.conftest import Running, code, field_of
from tests.cache_service.process import ready
from tests.cache_service.streams import LARGE, describe, emptied, parts, read, refused, write
from tests.cache_service.tiers.test_blocks import add, found, name, on_disk


def longer(data: bytes) -> bytes:
    return data + b"\0"


def shorter(data: bytes) -> bytes:
    return data[:-1]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def nothing(data: bytes) -> bytes:
    return b""


def swapped(data: bytes) -> bytes:
    """Its first two chunks in the wrong order."""
    return data[CHUNK_BYTES : 2 * CHUNK_BYTES] + data[:CHUNK_BYTES] + data[2 * CHUNK_BYTES :]


@pytest.mark.parametrize("damage", [longer, shorter, flipped, nothing, swapped])
async def test_other_bytes_than_announced_are_data_loss(store: Running, damage: Callable[[bytes], bytes]) -> None:
    data = kv.content(LARGE)
    error = await refused(store, parts(describe(LARGE, data), damage(data)))
    assert code(error) is grpc.StatusCode.DATA_LOSS and "send the file again" in (error.value.details() or "")
    assert not await found(store, name(LARGE))
    await write(store, describe(LARGE, data), data)
    assert await read(store, name(LARGE)) == data


async def test_more_than_announced_is_refused_at_once(store: Running) -> None:
    """The stream never ends, and the answer comes all the same."""
    data = kv.content(kv.header([1]))

    async def endless() -> AsyncIterator[pb.WriteBlockRequest]:
        yield pb.WriteBlockRequest(header=describe(kv.header([1]), data))
        yield pb.WriteBlockRequest(chunk=bytes(CHUNK_BYTES))
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        error = await refused(store, endless())
    assert code(error) is grpc.StatusCode.DATA_LOSS and str(len(data)) in (error.value.details() or "")


@pytest.mark.parametrize(
    "lie",
    [
        {"namespace": "other"},
        {"fingerprint": "0" * 16},
        {"chain_hash": bytes(32)},
        {"first_token": 1},
        {"parent": b"short"},
        {"token_count": 2},
        {"window": True},
    ],
    ids=lambda lie: next(iter(lie)),
)
async def test_a_file_whose_own_header_says_something_else_is_data_loss(store: Running, lie: dict[str, Any]) -> None:
    honest = kv.header([1])
    data = kv.content(replace(honest, **lie))
    error = await refused(store, parts(describe(honest, data), data))
    assert code(error) is grpc.StatusCode.DATA_LOSS


async def test_what_is_no_block_file_is_data_loss(store: Running) -> None:
    data = os.urandom(1000)
    error = await refused(store, parts(describe(kv.header([1]), data), data))
    assert code(error) is grpc.StatusCode.DATA_LOSS


async def test_another_namespaces_chain_hash_is_refused(store: Running) -> None:
    block = await add(store, [1])
    before = await found(store, block)
    data = kv.content(replace(kv.header([1]), namespace="other"))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await write(store, describe(kv.header([1]), data, kv.key(namespace="other")), data)
    assert code(error) is grpc.StatusCode.DATA_LOSS
    assert await found(store, block) == before and len(on_disk(store.data)) == 1


def without_header(header: pb.WriteBlockHeader, data: bytes) -> list[pb.WriteBlockRequest]:
    return list(parts(header, data))[1:2]


def header_twice(header: pb.WriteBlockHeader, data: bytes) -> list[pb.WriteBlockRequest]:
    return [pb.WriteBlockRequest(header=header)] * 2


def empty_part(header: pb.WriteBlockHeader, data: bytes) -> list[pb.WriteBlockRequest]:
    return [pb.WriteBlockRequest(header=header), pb.WriteBlockRequest()]


def large_chunk(header: pb.WriteBlockHeader, data: bytes) -> list[pb.WriteBlockRequest]:
    return [pb.WriteBlockRequest(header=header), pb.WriteBlockRequest(chunk=bytes(CHUNK_BYTES + 1))]


def no_digest(header: pb.WriteBlockHeader, data: bytes) -> list[pb.WriteBlockRequest]:
    header.file.digest = b""
    return [pb.WriteBlockRequest(header=header)]


def huge(header: pb.WriteBlockHeader, data: bytes) -> list[pb.WriteBlockRequest]:
    header.file.size_bytes = cache_store.MAX_FILE_BYTES + 1
    return [pb.WriteBlockRequest(header=header)]


def nobodys_namespace(header: pb.WriteBlockHeader, data: bytes) -> list[pb.WriteBlockRequest]:
    header.key.namespace = ""
    return [pb.WriteBlockRequest(header=header)]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda header, data: [], "header"),
        (without_header, "header"),
        (header_twice, "chunk"),
        (empty_part, "chunk"),
        (large_chunk, "chunk"),
        (no_digest, "header.file.digest"),
        (huge, "header.file.size_bytes"),
        (nobodys_namespace, "key.namespace"),
    ],
)
async def test_a_stream_that_is_not_as_the_contract_says_is_refused(
    store: Running, make: Callable[[pb.WriteBlockHeader, bytes], list[pb.WriteBlockRequest]], field: str
) -> None:
    data = kv.content(LARGE)
    error = await refused(store, iter(make(describe(LARGE, data), data)))
    assert code(error) is grpc.StatusCode.INVALID_ARGUMENT and field_of(error) == field


async def test_a_writer_that_says_nothing_is_sent_away(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_store, "IDLE_SECONDS", 0.05)
    data = kv.content(LARGE)

    async def stalled() -> AsyncIterator[pb.WriteBlockRequest]:
        for request in list(parts(describe(LARGE, data), data))[:2]:
            yield request
        await asyncio.Event().wait()

    error = await refused(store, stalled())
    assert code(error) is grpc.StatusCode.DEADLINE_EXCEEDED


async def half_sent(cache: cache_store_pb2_grpc.CacheStoreServiceAsyncStub, staging: Path) -> Any:
    """A stream of which half is in staging/."""
    data = kv.content(LARGE)
    call = cache.WriteBlock()
    for request in list(parts(describe(LARGE, data), data))[:3]:
        await call.write(request)
    async with asyncio.timeout(20):
        while not list(staging.iterdir()):
            await asyncio.sleep(0.005)
    return call


async def test_a_writer_that_cancels_leaves_nothing(store: Running) -> None:
    staging = store.data / "staging"
    call = await half_sent(store.cache, staging)
    call.cancel()
    await emptied(staging)
    assert on_disk(store.data) == [] and not await found(store, name(LARGE))


async def test_a_writer_whose_connection_breaks_leaves_nothing(data: Path) -> None:
    async with ready(data) as (_, channel):
        async with connect(f"unix:{data}/run/store.sock") as other:
            await half_sent(cache_store_pb2_grpc.CacheStoreServiceStub(other), data / "staging")
        await emptied(data / "staging")
        cache = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        block = pb.ReadBlockRequest(namespace="default", name=name(LARGE))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await cache.ReadBlock(block).read()
        assert code(error) is grpc.StatusCode.NOT_FOUND


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is there on Linux only")
async def test_a_full_disk_is_resource_exhausted(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kv.content(LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "open_private", kv.on_a_full_disk)
        error = await refused(store, parts(describe(LARGE, data), data))
        assert code(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await write(store, describe(LARGE, data), data)
    assert await read(store, name(LARGE)) == data


async def test_injected_faults_of_spooling_are_found(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the digest's check a flipped bit is published: the test that it is refused is able to fail."""
    data = kv.content(LARGE)
    described = describe(LARGE, data)
    forged = SimpleNamespace(update=lambda _: None, digest=lambda: described.file.digest)
    monkeypatch.setattr(publication, "RunningDigest", lambda: forged)
    await write(store, described, flipped(data))
    assert blockfile.digest(await read(store, name(LARGE))) != described.file.digest


async def test_a_fault_in_the_cleanup_is_found(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cleanup a broken stream leaves its file: the tests that it leaves nothing are able to fail."""
    monkeypatch.setattr(Spool, "discard", lambda self: self._file.close())
    data = kv.content(LARGE)
    with pytest.raises(grpc.aio.AioRpcError):
        await store.cache.WriteBlock(parts(describe(LARGE, data), flipped(data)))
    assert len(on_disk(store.data)) == 1
