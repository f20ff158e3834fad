"""Files of KV against a real store: written and read by path; and the disk, which has to be the store's."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentmem.channels import connect
from agentmem.errors import Unavailable
from agentmem.kv.blockfile import FileName
from agentmem.process.server import GrpcServer
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from inference_service.storage.client import StoreClient
from inference_service.storage.transport import abandon, disk_problem, write
from tests.inference_service.storage.stored import GEOMETRY, World, blocks, tensors_of

NAME = b"1" * 32


async def test_abandon_removes_what_was_written(world: World) -> None:
    header = blocks()[0]
    name = FileName.of(header)
    paths = await world.store.stage("ns", [name])
    await write(paths[name], header, tensors_of(header), GEOMETRY)
    await abandon(paths.values())
    assert list((world.data / "staging").iterdir()) == []


class Disk(cache_store_pb2_grpc.CacheStoreServiceServicer):
    """A store that says where its probe and its staging directory are."""

    def __init__(self, root: Path) -> None:
        self.probe, self.staging = root / "probe", root / "staging"
        self.staging.mkdir()
        self.probe.write_bytes(NAME)

    async def GetStore(self, request: Any, context: Any) -> Any:
        return pb.GetStoreResponse(instance=NAME, probe_path=str(self.probe), staging_directory=str(self.staging))


@asynccontextmanager
async def serving(disk: Disk) -> AsyncIterator[StoreClient]:
    register = cache_store_pb2_grpc.add_CacheStoreServiceServicer_to_server
    server = GrpcServer("127.0.0.1:0", [("agentmem.v1.CacheStoreService", register, disk)])
    await server.start()
    async with connect(f"127.0.0.1:{server.port}") as channel:
        yield StoreClient(channel)
    await server.stop(0)


async def test_the_stores_own_disk_is_no_problem(world: World) -> None:
    assert await disk_problem(world.store) == ""


async def test_another_disk_is_a_problem_in_words(tmp_path: Path) -> None:
    """A probe that holds something else: two machines with equal paths, or a copy."""
    disk = Disk(tmp_path)
    async with serving(disk) as store:
        assert await disk_problem(store) == ""
        for content in (b"2" * 32, b"", NAME[:-1], NAME + b"1"):
            disk.probe.write_bytes(content)
            assert "is not the store's file: mount its data directory" in await disk_problem(store)
        disk.probe.unlink()
        assert f"{disk.probe} cannot be read here (No such file or directory)" in await disk_problem(store)
        disk.probe.write_bytes(NAME)
        os.rmdir(disk.staging)
        assert f"{disk.staging} cannot be written here" in await disk_problem(store)


async def test_a_store_that_does_not_answer_says_nothing_of_its_disk(unused_tcp_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_tcp_port}") as channel:
        with pytest.raises(Unavailable):
            await disk_problem(StoreClient(channel))
