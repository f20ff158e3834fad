"""ReadBlock and WriteBlock: the same files as by path, byte for byte, and nothing left of what goes wrong."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem import blockfile
from agentmem.blockfile import CHUNK_BYTES, BlockHeader
from agentmem.channels import connect
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc, types_pb2
from cache_service import incoming, spool
from cache_service.limits import Limits
from cache_service.spool import Source, Spool

from . import kv
from .conftest import Running, code, field_of, running
from .process import ready
from .test_blocks import add, found, name, on_disk, publish
from .test_warm import evictions, pin, small, speak, there

__all__ = ["small"]

LARGE = kv.header(list(range(256)))
"""Described with so many tokens that its file has several chunks and several pieces."""
LARGE = replace(LARGE, token_count=25_000)


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


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("header", [kv.header([1, 2, 3]), LARGE], ids=["one chunk", "many"])
async def test_by_stream_equals_by_path(store: Running, header: BlockHeader, window: bool) -> None:
    header = replace(header, window=window)
    data = kv.content(header)
    assert (len(data) > 3 * spool.PIECE_BYTES // 2) == (header.token_count > 1000)
    await write(store, describe(header, data), data)
    named = name(header, pb.FILE_KIND_WINDOW if window else pb.FILE_KIND_BLOCK)
    (file,) = await found(store, named)
    assert kv.read(file.path) == data == await read(store, named)
    assert (file.digest, file.size_bytes) == (blockfile.digest(data), len(data))
    assert (file.first_token, file.token_count) == (header.first_token, header.token_count)
    assert kv.mode(file.path) == 0o600 and len(on_disk(store.data)) == 1


async def test_what_was_published_by_path_is_read_by_stream(store: Running) -> None:
    block = await add(store, [1])
    (file,) = await found(store, block)
    assert await read(store, block) == kv.read(file.path)


async def test_chunks_are_no_larger_than_the_contract_says(store: Running) -> None:
    data = kv.content(LARGE)
    await write(store, describe(LARGE, data), data)
    call = store.cache.ReadBlock(pb.ReadBlockRequest(namespace="default", name=name(LARGE)))
    sizes = [len(part.chunk) async for part in call]
    assert max(sizes) == CHUNK_BYTES and sum(sizes) == len(data)


@pytest.mark.parametrize("namespace", ["default", "other"])
async def test_a_name_that_is_not_there_is_not_found(store: Running, namespace: str) -> None:
    block = await add(store, [1])
    missing = block if namespace == "other" else name(kv.header([2]))
    for wanted in (missing, pb.FileName(kind=pb.FILE_KIND_WINDOW, chain_hash=block.chain_hash)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await read(store, wanted, namespace)
        assert code(error) is grpc.StatusCode.NOT_FOUND


async def test_a_row_whose_file_has_vanished_is_not_found(store: Running) -> None:
    block = await add(store, [1])
    kv.delete((await found(store, block))[0].path)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await read(store, block)
    assert code(error) is grpc.StatusCode.NOT_FOUND


async def test_a_disk_that_cannot_read_is_data_loss(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    block = await add(store, [1])
    monkeypatch.setattr("cache_service.spool.os.pread", failing)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await read(store, block)
    assert code(error) is grpc.StatusCode.DATA_LOSS


async def test_a_file_that_is_deleted_meanwhile_is_streamed_to_its_end(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    header = replace(LARGE, token_count=200_000)
    data = kv.content(header)
    await write(store, describe(header, data), data)
    await publish(store, [], version, [name(header)])
    call = store.cache.ReadBlock(pb.ReadBlockRequest(namespace="default", name=name(header)))
    (file,) = await found(store, name(header))
    rest = aiter(call)
    first = await anext(rest)
    await store.delete()
    assert on_disk(store.data) == []
    assert f"{file.path} (deleted)" in kv.open_files() or sys.platform != "linux", "the rest is still to be read"
    assert first.chunk + b"".join([part.chunk async for part in rest]) == data


async def test_a_reader_that_goes_away_leaves_nothing_open(store: Running) -> None:
    data = kv.content(replace(LARGE, token_count=200_000))
    header = replace(LARGE, token_count=200_000)
    await write(store, describe(header, data), data)
    (file,) = await found(store, name(header))
    for _ in range(5):
        call = store.cache.ReadBlock(pb.ReadBlockRequest(namespace="default", name=name(header)))
        await call.read()
        call.cancel()
    async with asyncio.timeout(20):
        while file.path in kv.open_files():
            await asyncio.sleep(0.005)


async def test_a_file_that_is_there_already_is_not_taken_again(store: Running) -> None:
    block = await add(store, [1])
    (before,) = await found(store, block)
    other = kv.content(kv.header([1]))
    await write(store, describe(kv.header([1]), other), other)
    (after,) = await found(store, block)
    assert before == after and kv.read(after.path) != other and len(on_disk(store.data)) == 1


async def test_two_writers_of_one_block(store: Running) -> None:
    """The first to end wins; both are told that all is well."""
    one, two = kv.content(LARGE), kv.content(LARGE)
    await asyncio.gather(*(write(store, describe(LARGE, data), data) for data in (one, two)))
    (file,) = await found(store, name(LARGE))
    data = await read(store, name(LARGE))
    assert data in (one, two) and blockfile.digest(data) == file.digest and len(on_disk(store.data)) == 1


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
    header.file.size_bytes = incoming.MAX_FILE_BYTES + 1
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
    monkeypatch.setattr(incoming, "IDLE_SECONDS", 0.05)
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


async def test_a_full_disk_is_resource_exhausted(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kv.content(LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(spool, "open_private", kv.on_a_full_disk)
        error = await refused(store, parts(describe(LARGE, data), data))
        assert code(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await write(store, describe(LARGE, data), data)
    assert await read(store, name(LARGE)) == data


async def test_the_file_belongs_to_the_agent_before_its_state_is_published(store: Running) -> None:
    """It is erased with the agent, and another state's publication drops it."""
    header = kv.header([1])
    data = kv.content(header)
    for end in ("deleted", "published"):
        version = (await store.cache.CommitTurn(kv.turn([1]))).version
        described = describe(header, data)
        described.version.CopyFrom(version)
        await write(store, described, data)
        assert (await store.agents.GetAgent(kv.get())).agent.blocks == 1
        if end == "deleted":
            await store.delete()
        else:
            await publish(store, [], version, [])
        assert on_disk(store.data) == []


async def test_a_state_is_published_without_files(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    old = await add(store, [7], version)
    header = kv.header([1])
    data = kv.content(header)
    described = describe(header, data)
    described.version.CopyFrom(version)
    await write(store, described, data)
    assert len(await found(store, old, name(header))) == 2, "what the agent had is not dropped yet"
    await publish(store, [], version, [name(header)])
    assert [file.chain_hash for file in await found(store, old, name(header))] == [header.chain_hash]


@pytest.mark.parametrize("stale", [False, True])
async def test_an_older_states_file_is_not_referred_to(store: Running, stale: bool) -> None:
    first = (await store.cache.CommitTurn(kv.turn([1]))).version
    second = (await store.cache.CommitTurn(kv.turn([2], first, keep=1))).version
    await add(store, [9], second)
    header = kv.header([1])
    data = kv.content(header)
    described = describe(header, data)
    described.version.CopyFrom(first if stale else second)
    await write(store, described, data)
    assert (await store.agents.GetAgent(kv.get())).agent.blocks == (1 if stale else 2)


async def test_a_file_of_a_deleted_agent_is_dropped(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    await store.delete()
    header = kv.header([1])
    data = kv.content(header)
    described = describe(header, data)
    described.version.CopyFrom(version)
    await write(store, described, data)
    assert on_disk(store.data) == []


def repeats_a_piece(source: Source, offset: int) -> bytes:
    return INTACT_READ(source, max(0, offset - 1))


def drops_a_byte(source: Source, offset: int) -> bytes:
    return INTACT_READ(source, offset + 1)


INTACT_READ = Source.read


@pytest.mark.parametrize("fault", [repeats_a_piece, drops_a_byte])
async def test_injected_faults_of_reading_are_found(
    store: Running, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Source, int], bytes]
) -> None:
    """The comparison of this file's first tests is able to fail."""
    data = kv.content(LARGE)
    await write(store, describe(LARGE, data), data)
    monkeypatch.setattr(Source, "read", fault)
    call = store.cache.ReadBlock(pb.ReadBlockRequest(namespace="default", name=name(LARGE)))
    got = b""
    async for part in call:
        got += part.chunk
        if len(got) > 2 * len(data):
            break
    call.cancel()
    assert blockfile.digest(got) != blockfile.digest(data)


async def test_injected_faults_of_spooling_are_found(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the digest's check a flipped bit is published: the test that it is refused is able to fail."""
    data = kv.content(LARGE)
    described = describe(LARGE, data)
    monkeypatch.setattr(spool.RunningDigest, "digest", lambda _: described.file.digest)
    await write(store, described, flipped(data))
    assert blockfile.digest(await read(store, name(LARGE))) != described.file.digest


async def test_a_fault_in_the_cleanup_is_found(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cleanup a broken stream leaves its file: the tests that it leaves nothing are able to fail."""
    monkeypatch.setattr(Spool, "discard", lambda self: self._file.close())
    data = kv.content(LARGE)
    with pytest.raises(grpc.aio.AioRpcError):
        await store.cache.WriteBlock(parts(describe(LARGE, data), flipped(data)))
    assert len(on_disk(store.data)) == 1


async def send(store: Running, agent: str, blocks: Sequence[int], version: types_pb2.AgentVersion) -> None:
    """A state of two-token blocks by stream, up to its publication."""
    for number in blocks:
        header = kv.header([number, 0])
        data = kv.content(header)
        described = describe(header, data, kv.key(agent))
        described.version.CopyFrom(version)
        await write(store, described, data)


async def test_no_room_in_the_warm_tier_is_refused_before_a_byte_is_kept(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await speak(small, "a", range(10))
    await pin(small, "a")
    monkeypatch.setattr(Spool, "write", lambda *_: pytest.fail("a byte is kept"))
    data = kv.content(LARGE)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await write(small, describe(LARGE, data), data)
    assert code(error) is grpc.StatusCode.RESOURCE_EXHAUSTED and "--warm-bytes" in (error.value.details() or "")
    assert len(await there(small, *range(10))) == 10 and not list((small.data / "staging").iterdir())


async def test_an_eviction_in_the_middle_of_a_state_takes_nothing_of_it(small: Running) -> None:
    """What was sent is the agent's at once, and the others are older: they go."""
    await speak(small, "a", [0, 1, 2, 3, 4, 5, 6])
    version = (await small.cache.CommitTurn(kv.turn([1], agent=kv.key("b")))).version
    await send(small, "b", [10, 11, 12, 13], version)
    assert await there(small, 0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13) == [10, 11, 12, 13]
    assert evictions(small, "capacity") == 1


async def test_a_file_that_the_tier_cannot_hold_is_withdrawn(data: Path) -> None:
    header = kv.header([1])
    content = kv.content(header)
    async with running(data, Limits(len(content) // 2, 0, 0.9, 0.8)) as store:
        version = (await store.cache.CommitTurn(kv.turn([1]))).version
        described = describe(header, content)
        described.version.CopyFrom(version)
        error = await refused(store, parts(described, content))
        assert code(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await store.agents.GetAgent(kv.get())).agent.blocks == 0
