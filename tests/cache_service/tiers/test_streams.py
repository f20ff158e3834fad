"""Files between nodes: the same as by path, byte for byte; what readers see; what is refused, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentmem.errors import DataLoss, ResourceExhausted
from agentmem.kv import blockfile
from agentmem.kv.blockfile import CHUNK_BYTES, BlockHeader
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.files import publication
from cache_service.files.publication import Spool
from cache_service.tiers.limits import DiskLimits
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, running
from tests.cache_service.streams import LARGE, arrive, chunks, describe, emptied, read, refused, send, write
from tests.cache_service.tiers.test_blocks import add, found, name, on_disk, publish
from tests.cache_service.tiers.test_warm import evictions, pin, small, speak, there

__all__ = ["small"]


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("header", [kv.header([1, 2, 3]), LARGE], ids=["one chunk", "many"])
async def test_by_stream_equals_by_path(store: Running, header: BlockHeader, window: bool) -> None:
    header = replace(header, window=window)
    data = await arrive(store, header)
    assert (len(data) > 3 * publication.PIECE_BYTES // 2) == (header.token_count > 1000)
    named = name(header, pb.FILE_KIND_WINDOW if window else pb.FILE_KIND_BLOCK)
    (file,) = await found(store, named)
    assert kv.read(file.path) == data == await read(store, named)
    assert (file.digest, file.size_bytes) == (blockfile.digest(data), len(data))
    assert (file.first_token, file.token_count) == (header.first_token, header.token_count)
    assert Path(file.path).stat().st_mode & 0o777 == 0o600 and len(on_disk(store.data)) == 1


async def test_chunks_are_no_larger_than_the_contract_says(store: Running) -> None:
    data = await arrive(store, LARGE)
    call = store.cache.ReadBlock(pb.ReadBlockRequest(namespace="default", name=name(LARGE)))
    sizes = [len(part.chunk) async for part in call]
    assert max(sizes) == CHUNK_BYTES and sum(sizes) == len(data)


@pytest.mark.parametrize("namespace", ["default", "other"])
async def test_a_name_that_is_not_there_is_not_found(store: Running, namespace: str) -> None:
    block = await add(store, [1])
    missing = block if namespace == "other" else name(kv.header([2]))
    for wanted in (missing, pb.FileName(kind=pb.FILE_KIND_WINDOW, chain_hash=block.chain_hash)):
        await fails(read(store, wanted, namespace), "NOT_FOUND")


async def test_a_row_whose_file_has_vanished_is_not_found(store: Running) -> None:
    block = await add(store, [1])
    Path((await found(store, block))[0].path).unlink()
    await fails(read(store, block), "NOT_FOUND")


async def test_a_disk_that_cannot_read_is_data_loss(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    block = await add(store, [1])
    monkeypatch.setattr("cache_service.files.publication.os.pread", failing)
    await fails(read(store, block), "DATA_LOSS")


async def test_a_file_that_is_deleted_meanwhile_is_streamed_to_its_end(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    header = replace(LARGE, token_count=200_000)
    data = await arrive(store, header)
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
    header = replace(LARGE, token_count=200_000)
    await arrive(store, header)
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
    other = await arrive(store, kv.header([1]))
    (after,) = await found(store, block)
    assert before == after and kv.read(after.path) != other and len(on_disk(store.data)) == 1


def repeats_a_piece(file: int, size: int, offset: int) -> bytes:
    return INTACT_READ(file, size, max(0, offset - 1))


def drops_a_byte(file: int, size: int, offset: int) -> bytes:
    return INTACT_READ(file, size, offset + 1)


INTACT_READ = os.pread


@pytest.mark.parametrize("fault", [repeats_a_piece, drops_a_byte])
async def test_injected_faults_of_reading_are_found(
    store: Running, monkeypatch: pytest.MonkeyPatch, fault: Callable[[int, int, int], bytes]
) -> None:
    """The comparison of this file's first tests is able to fail."""
    data = await arrive(store, LARGE)
    monkeypatch.setattr("cache_service.files.publication.os.pread", fault)
    call = store.cache.ReadBlock(pb.ReadBlockRequest(namespace="default", name=name(LARGE)))
    got = b""
    async for part in call:
        got += part.chunk
        if len(got) > 2 * len(data):
            break
    call.cancel()
    assert blockfile.digest(got) != blockfile.digest(data)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "longer": lambda data: data + b"\0",
    "shorter": lambda data: data[:-1],
    "flipped": flipped,
    "nothing": lambda data: b"",
    "swapped": lambda data: data[CHUNK_BYTES : 2 * CHUNK_BYTES] + data[:CHUNK_BYTES] + data[2 * CHUNK_BYTES :],
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_other_bytes_than_announced_are_data_loss(store: Running, damage: str) -> None:
    data = kv.content(LARGE)
    assert "send the file again" in await refused(store, describe(LARGE, data), DAMAGE[damage](data))
    assert not await found(store, name(LARGE))
    await write(store, describe(LARGE, data), data)
    assert await read(store, name(LARGE)) == data


async def test_a_fetch_that_is_cancelled_leaves_nothing(store: Running) -> None:
    data, staging = kv.content(LARGE), store.data / "staging"

    async def stalled() -> AsyncIterator[bytes]:
        async for chunk in chunks(data[: 2 * CHUNK_BYTES]):
            yield chunk
        await asyncio.Event().wait()

    sending = asyncio.create_task(send(store, describe(LARGE, data), stalled()))
    async with asyncio.timeout(20):
        while not list(staging.iterdir()):
            await asyncio.sleep(0.005)
    sending.cancel()
    await asyncio.wait([sending])
    await emptied(staging)
    assert on_disk(store.data) == [] and not await found(store, name(LARGE))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is there on Linux only")
async def test_a_full_disk_is_resource_exhausted(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kv.content(LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "open_private", kv.on_a_full_disk)
        await refused(store, describe(LARGE, data), data, ResourceExhausted)
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
    with pytest.raises(DataLoss):
        await write(store, describe(LARGE, data), flipped(data))
    assert len(on_disk(store.data)) == 1


async def test_the_file_belongs_to_the_agent_before_its_state_is_published(store: Running) -> None:
    """It is erased with the agent, and another state's publication drops it."""
    for end in ("deleted", "published"):
        version = (await store.cache.CommitTurn(kv.turn([1]))).version
        await arrive(store, kv.header([1]), version=version)
        assert (await store.agent()).blocks == 1
        if end == "deleted":
            await store.delete()
        else:
            await publish(store, [], version, [])
        assert on_disk(store.data) == []


async def test_a_state_is_published_without_files(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    old = await add(store, [7], version)
    header = kv.header([1])
    await arrive(store, header, version=version)
    assert len(await found(store, old, name(header))) == 2, "what the agent had is not dropped yet"
    await publish(store, [], version, [name(header)])
    assert [file.chain_hash for file in await found(store, old, name(header))] == [header.chain_hash]


@pytest.mark.parametrize("stale", [False, True])
async def test_an_older_states_file_is_not_referred_to(store: Running, stale: bool) -> None:
    first = (await store.cache.CommitTurn(kv.turn([1]))).version
    second = (await store.cache.CommitTurn(kv.turn([2], first, keep=1))).version
    await add(store, [9], second)
    await arrive(store, kv.header([1]), version=first if stale else second)
    assert (await store.agent()).blocks == (1 if stale else 2)


async def test_no_room_in_the_warm_tier_is_refused_before_a_byte_is_kept(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await speak(small, "a", range(10))
    await pin(small, "a")
    monkeypatch.setattr(Spool, "write", lambda *_: pytest.fail("a byte is kept"))
    data = kv.content(LARGE)
    with pytest.raises(ResourceExhausted, match="--warm-bytes"):
        await write(small, describe(LARGE, data), data)
    assert len(await there(small, *range(10))) == 10 and not list((small.data / "staging").iterdir())


async def test_an_eviction_in_the_middle_of_a_state_takes_nothing_of_it(small: Running) -> None:
    """Files that were sent are the agent's at once, and the others are older: they go."""
    await speak(small, "a", [0, 1, 2, 3, 4, 5, 6])
    version = await small.commit([1], "b")
    for number in (10, 11, 12, 13):
        await arrive(small, kv.header([number, 0]), key=kv.key("b"), version=version)
    assert await there(small, 0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13) == [10, 11, 12, 13]
    assert evictions(small, "capacity") == 1


async def test_a_file_that_the_tier_cannot_hold_is_withdrawn(data: Path) -> None:
    header = kv.header([1])
    content = kv.content(header)
    async with running(data, DiskLimits(len(content) // 2, 0, 0.9, 0.8)) as store:
        version = (await store.cache.CommitTurn(kv.turn([1]))).version
        described = describe(header, content, version=version)
        await refused(store, described, content, ResourceExhausted)
        assert (await store.agent()).blocks == 0
