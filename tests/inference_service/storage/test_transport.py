"""Both ways for files of KV against a real store: the same bytes, the same verification, the same misses."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentmem import errors
from agentmem.channels import connect
from agentmem.kv.blockfile import CHUNK_BYTES, FileName, digest
from agentmem.kv.ledger import NO_VERSION
from agentmem.process.server import GrpcServer
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from agentmem.v1.types_pb2 import MISS_REASON_ABSENT, MISS_REASON_CORRUPT, MISS_REASON_IO_ERROR
from inference_service.memory.speeds import Speeds
from inference_service.metrics import WorkerMetrics
from inference_service.storage import client, transport
from inference_service.storage.client import StoreClient
from inference_service.storage.transport import STREAMS_AT_ONCE, Target, TransportSelector
from inference_service.turns.fetching import Fetcher
from tests.cache_service.process import ready
from tests.inference_service.storage.stored import (
    GEOMETRY,
    KEY,
    KINDS,
    World,
    blocks,
    cut,
    empty,
    flip,
    lengthen,
    tensors_of,
    window,
)


@pytest.fixture
async def mortal(data: Path) -> AsyncIterator[tuple[World, asyncio.subprocess.Process]]:
    """A store that is a process of its own, to be killed."""
    async with ready(data) as (process, channel):
        yield World(data, StoreClient(channel)), process


@pytest.mark.parametrize("written_by", KINDS)
async def test_one_way_reads_what_the_other_wrote(world: World, written_by: str) -> None:
    for seed, header in enumerate([*blocks(), window()]):
        tensors = await world.write(written_by, header, seed)
        file = await world.find(header)
        content = Path(file.path).read_bytes()
        assert await world.store.read_block("ns", FileName.of(header), len(content)) == content
        assert digest(content) == file.digest and len(content) == file.size_bytes
        assert len(content) > 2 * CHUNK_BYTES or header.token_count < 256
        for kind in KINDS:
            read = await world.read(kind, header, file)
            assert {name: tensor.tobytes() for name, tensor in read.items()} == tensors
            shapes = GEOMETRY.checkpoint_shapes if header.window else GEOMETRY.block_shapes
            assert {name: tensor.shape for name, tensor in read.items()} == {
                name: shape for name, (_, shape) in shapes(header.token_count).items()
            }
    assert list((world.data / "staging").iterdir()) == []


@pytest.mark.parametrize("damage", [flip, cut, lengthen, empty])
async def test_damage_is_the_same_miss_either_way(world: World, damage: Callable[[Path], None]) -> None:
    header = blocks()[0]
    await world.write("path", header)
    file = await world.find(header)
    damage(Path(file.path))
    for kind in KINDS:
        assert await world.missed(kind, header, file) == (MISS_REASON_CORRUPT, "digest", True)


async def test_a_file_that_is_gone_is_absent_either_way(world: World) -> None:
    header = blocks()[0]
    await world.write("stream", header)
    file = await world.find(header)
    Path(file.path).unlink()
    for kind in KINDS:
        assert await world.missed(kind, header, file) == (MISS_REASON_ABSENT, "missing", True)


async def test_a_file_in_anothers_place_is_refused_either_way(world: World) -> None:
    mine, theirs = blocks()[:2]
    await world.write("path", mine)
    await world.write("path", theirs, seed=1)
    file, other = await world.find(mine), await world.find(theirs)
    Path(file.path).write_bytes(Path(other.path).read_bytes())
    for kind in KINDS:
        assert await world.missed(kind, mine, file) == (MISS_REASON_CORRUPT, "digest", True)
        lied = pb.StoredFile(path=file.path, digest=other.digest, size_bytes=other.size_bytes)
        assert await world.missed(kind, mine, lied) == (MISS_REASON_CORRUPT, "header", True)
    assert (await world.read("stream", theirs, other))["k.weights"].shape[2] == 256


async def test_a_block_of_another_namespace_is_not_read_by_stream(world: World) -> None:
    header = blocks()[0]
    await world.write("path", header)
    stranger = replace(header, namespace="other")
    assert (await world.missed("stream", stranger, await world.find(header)))[0] == MISS_REASON_ABSENT


async def test_a_store_that_dies_is_an_io_error_and_the_file_stays(
    mortal: tuple[World, asyncio.subprocess.Process],
) -> None:
    world, process = mortal
    header = blocks()[0]
    await world.write("path", header)
    file = await world.find(header)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert await world.missed("stream", header, file) == (MISS_REASON_IO_ERROR, "io_error", False)
    with pytest.raises(errors.Unavailable):
        await world.transport("stream").write(Target(KEY, NO_VERSION, ""), header, tensors_of(header), GEOMETRY)


async def test_a_lie_is_refused_by_the_store(world: World) -> None:
    header = blocks()[0]
    liar = replace(header, namespace="other")
    with pytest.raises(errors.DataLoss):
        await world.transport("stream").write(Target(KEY, NO_VERSION, ""), liar, tensors_of(header), GEOMETRY)


async def _drops_a_chunk(call: Any, size_bytes: int) -> bytes:
    parts = [part.chunk async for part in call]
    return b"".join(parts[:1] + parts[2:])


async def _swaps_chunks(call: Any, size_bytes: int) -> bytes:
    return b"".join(reversed([part.chunk async for part in call]))


@pytest.mark.parametrize("fault", [_drops_a_chunk, _swaps_chunks])
async def test_injected_faults_of_the_stream_are_found(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any, int], Awaitable[bytes]]
) -> None:
    header = blocks()[0]
    await world.write("path", header)
    file = await world.find(header)
    monkeypatch.setattr(client, "_received", fault)
    assert await world.missed("stream", header, file) == (MISS_REASON_CORRUPT, "digest", True)


async def test_injected_faults_of_sending_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = client._sent

    async def cut_short(header: pb.WriteBlockHeader, data: bytes) -> AsyncIterator[pb.WriteBlockRequest]:
        parts = [part async for part in sent(header, data)]
        for part in parts[:-1]:
            yield part

    monkeypatch.setattr(client, "_sent", cut_short)
    with pytest.raises(errors.DataLoss, match="bytes came"):
        await world.write("stream", blocks()[0])
    assert not list(world.data.rglob("*.safetensors"))


async def test_few_streams_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    header = blocks()[0]
    await world.write("path", header)
    file = await world.find(header)
    now, most, read_block = 0, 0, StoreClient.read_block

    async def counted(self: StoreClient, *arguments: Any) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await read_block(self, *arguments)
        finally:
            now -= 1

    monkeypatch.setattr(StoreClient, "read_block", counted)
    await world.transport("stream").read_all([(header, file)] * 20, GEOMETRY)
    assert most == STREAMS_AT_ONCE


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_written_and_is_not_published_is_removed(world: World, kind: str) -> None:
    header = blocks()[0]
    name = FileName.of(header)
    paths = await world.store.stage("ns", [name])
    ways = world.transport(kind)
    await ways.write(Target(KEY, NO_VERSION, paths[name]), header, tensors_of(header), GEOMETRY)
    await ways.abandon(paths.values())
    assert list((world.data / "staging").iterdir()) == []


@pytest.mark.slow
async def test_the_fetcher_quarantines_what_is_bad_and_leaves_what_is_out_of_reach(
    mortal: tuple[World, asyncio.subprocess.Process],
) -> None:
    world, process = mortal
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    fetcher = Fetcher(world.store, TransportSelector(world.store, "stream", metrics), metrics, Speeds())
    good, bad, tail = blocks()
    for seed, header in enumerate((good, bad, tail)):
        await world.write("stream", header, seed)
    wanted = [(header, await world.find(header)) for header in (good, bad, tail)]
    flip(Path(wanted[1][1].path))
    read, refused = await fetcher.read(GEOMETRY, "ns", "m", wanted)
    assert set(read) == {FileName.of(good), FileName.of(tail)} and refused == {FileName.of(bad): MISS_REASON_CORRUPT}
    assert len(list((world.data / "quarantine").glob("*.safetensors"))) == 1
    assert registry.get_sample_value("agentmem_cache_load_failures_total", {"model_id": "m", "reason": "digest"}) == 1
    process.send_signal(signal.SIGKILL)
    await process.wait()
    read, refused = await fetcher.read(GEOMETRY, "ns", "m", wanted[:1])
    assert (read, refused) == ({}, {FileName.of(good): MISS_REASON_IO_ERROR})
    assert Path(wanted[0][1].path).exists()
    unknown = Fetcher(world.store, TransportSelector(world.store, "auto", metrics), metrics, Speeds())
    assert await unknown.read(GEOMETRY, "ns", "m", wanted[:1]) == ({}, {FileName.of(good): MISS_REASON_IO_ERROR})


class Endless(cache_store_pb2_grpc.CacheStoreServiceServicer):
    """A store that streams for ever, and knows when its reader has left."""

    def __init__(self) -> None:
        self.begun, self.left = asyncio.Event(), asyncio.Event()

    async def ReadBlock(self, request: Any, context: Any) -> AsyncIterator[pb.ReadBlockResponse]:
        self.begun.set()
        try:
            while True:
                yield pb.ReadBlockResponse(chunk=bytes(CHUNK_BYTES))
        finally:
            self.left.set()


@asynccontextmanager
async def endless() -> AsyncIterator[tuple[Endless, StoreClient]]:
    servicer = Endless()
    register = cache_store_pb2_grpc.add_CacheStoreServiceServicer_to_server
    server = GrpcServer("127.0.0.1:0", [("agentmem.v1.CacheStoreService", register, servicer)])
    await server.start()
    async with connect(f"127.0.0.1:{server.port}") as channel:
        yield servicer, StoreClient(channel)
    await server.stop(0)


async def test_more_than_the_row_says_is_not_received() -> None:
    async with endless() as (servicer, store):
        data = await store.read_block("ns", FileName.block(bytes(32)), 3 * CHUNK_BYTES)
        assert len(data) == 4 * CHUNK_BYTES
        async with asyncio.timeout(20):
            await servicer.left.wait()


async def test_a_reader_that_is_cancelled_ends_the_stream() -> None:
    async with endless() as (servicer, store):
        reading = asyncio.create_task(store.read_block("ns", FileName.block(bytes(32)), 1 << 40))
        async with asyncio.timeout(20):
            await servicer.begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        async with asyncio.timeout(20):
            await servicer.left.wait()


def test_the_ways_are_named_as_the_setting_is() -> None:
    assert (transport.PathTransport.name, transport.StreamTransport.name) == KINDS
