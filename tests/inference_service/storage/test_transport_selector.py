"""Path or stream: what a worker must see of the store's disk, and what it must not be taken in by."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentmem.channels import connect
from agentmem.errors import Unavailable
from agentmem.process.server import GrpcServer
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from inference_service.metrics import WorkerMetrics
from inference_service.storage import transport
from inference_service.storage.client import StoreClient
from inference_service.storage.transport import Mode, TransportSelector, no_shared_disk

ONE, TWO = b"1" * 32, b"2" * 32


class Disk(cache_store_pb2_grpc.CacheStoreServiceServicer):
    """A store with its probe and its staging directory somewhere; it sees witnesses in `real_staging`."""

    def __init__(self, root: Path) -> None:
        self.instance = ONE
        self.probe, self.staging = root / "probe", root / "staging"
        self.real_staging = self.staging
        self.staging.mkdir()
        self.probe.write_bytes(ONE)
        self.asked = 0
        self.next_instances: list[bytes] = []

    async def GetStore(self, request: Any, context: Any) -> Any:
        self.asked += 1
        if self.next_instances:
            self.instance = self.next_instances.pop(0)
            self.probe.write_bytes(self.instance)
        witness = self.real_staging / Path(request.witness_path).name
        return pb.GetStoreResponse(
            instance=self.instance,
            probe_path=str(self.probe),
            staging_directory=str(self.staging),
            witness_seen=witness.is_file() and witness.read_bytes() == self.instance,
        )

    async def OpenCache(self, request: Any, context: Any) -> Any:
        return pb.OpenCacheResponse(instance=self.instance)

    async def StageBlocks(self, request: Any, context: Any) -> Any:
        return pb.StageBlocksResponse(instance=self.instance)


@asynccontextmanager
async def serving(disk: Disk) -> AsyncIterator[StoreClient]:
    register = cache_store_pb2_grpc.add_CacheStoreServiceServicer_to_server
    server = GrpcServer("127.0.0.1:0", [("agentmem.v1.CacheStoreService", register, disk)])
    await server.start()
    async with connect(f"127.0.0.1:{server.port}") as channel:
        yield StoreClient(channel)
    await server.stop(0)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def transports(store: StoreClient, mode: Mode = "auto") -> tuple[TransportSelector, CollectorRegistry]:
    registry = CollectorRegistry()
    return TransportSelector(store, mode, WorkerMetrics(registry)), registry


async def problem_with(disk: Disk) -> str:
    async with serving(disk) as store:
        instance, problem = await no_shared_disk(store)
        assert instance == disk.instance
        found, registry = transports(store)
        assert (await found.current()).name == ("stream" if problem else "path")
        for name in ("path", "stream"):
            chosen = registry.get_sample_value("agentmem_store_transfer", {"transfer": name})
            assert chosen == (name == ("stream" if problem else "path"))
    assert not disk.real_staging.is_dir() or not list(disk.real_staging.iterdir()), "witnesses are removed"
    return problem


async def test_on_one_disk_files_go_by_path(disk: Disk) -> None:
    assert await problem_with(disk) == ""


async def test_a_probe_that_is_not_there(disk: Disk) -> None:
    disk.probe.unlink()
    assert await problem_with(disk) == f"the store's probe {disk.probe} cannot be read here: No such file or directory"


@pytest.mark.parametrize("content", [TWO, b"", ONE[:-1], ONE + b"1"])
async def test_a_probe_that_holds_something_else(disk: Disk, content: bytes) -> None:
    """Two machines with equal paths, or a file that is copied from time to time."""
    disk.probe.write_bytes(content)
    assert await problem_with(disk) == f"the probe {disk.probe} here is not this store's"


async def test_a_staging_directory_that_is_not_there(disk: Disk) -> None:
    disk.staging.rmdir()
    assert "cannot be written here: No such file or directory" in await problem_with(disk)


async def test_a_staging_directory_that_cannot_be_written(disk: Disk) -> None:
    """Not even by root, who may write in every directory of a disk."""
    disk.staging = disk.real_staging = Path("/proc/self/task") if Path("/proc").exists() else Path("/dev/fd")
    async with serving(disk) as store:
        assert "cannot be written here" in (await no_shared_disk(store))[1]


async def test_a_staging_directory_that_the_store_does_not_see(disk: Disk, tmp_path: Path) -> None:
    """As where a container has a layer of its own over the data directory: it reads the store's files, and writes its
    own."""
    disk.real_staging = tmp_path / "below"
    disk.real_staging.mkdir()
    assert await problem_with(disk) == f"the store does not see what is written in {disk.staging} here"
    assert not list(disk.staging.iterdir())


@pytest.mark.parametrize("mode", ["path", "stream"])
async def test_a_setting_forces_it_and_asks_nothing(disk: Disk, mode: Mode) -> None:
    disk.probe.write_bytes(TWO)
    async with serving(disk) as store:
        found, registry = transports(store, mode)
        await found.refresh()
        assert (await found.current()).name == mode and disk.asked == 0
        assert registry.get_sample_value("agentmem_store_transfer", {"transfer": mode}) == 1


async def test_it_is_found_out_once_per_store_process(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with serving(disk) as store:
        found, _ = transports(store)
        assert {(await each).name for each in [found.current() for _ in range(5)]} == {"path"}
        assert disk.asked == 2
        await store.stage("ns", [])
        assert (await found.current()).name == "path" and disk.asked == 2

        disk.instance = TWO  # another machine answers now; the files of the first are still here
        assert (await found.current()).name == "path", "nobody has noticed yet"
        await store.stage("ns", [])
        assert (await found.current()).name == "stream"
        disk.probe.write_bytes(TWO)
        await store.stage("ns", [])
        assert (await found.current()).name == "stream", "it is the same process"
    said = [vars(record)["fields"] for record in caplog.records if record.message == "files of KV"]
    assert [each["transfer"] for each in said] == ["path", "stream"]
    assert said[1]["reason"] == f"the probe {disk.probe} here is not this store's"


async def test_a_store_that_comes_back_is_looked_at_before_it_is_used(disk: Disk) -> None:
    async with serving(disk) as store:
        found, _ = transports(store)
        await found.refresh()
        disk.instance = TWO
        await found.refresh()
        assert (await found.current()).name == "stream"


async def test_a_store_that_changes_in_between_is_looked_at_again(disk: Disk) -> None:
    disk.next_instances = [ONE, TWO]
    async with serving(disk) as store:
        assert await no_shared_disk(store) == (TWO, "")
    assert not list(disk.staging.iterdir()) and disk.asked == 4


async def test_a_store_that_does_not_answer_is_asked_again_later(disk: Disk, unused_tcp_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_tcp_port}") as channel:
        found, _ = transports(StoreClient(channel))
        with pytest.raises(Unavailable):
            await found.current()
    async with serving(disk) as store:
        found, _ = transports(store)
        calls = await asyncio.gather(*(found.current() for _ in range(10)))
        assert len(set(map(id, calls))) == 1 and disk.asked == 2, "all wait for one answer"


@pytest.mark.parametrize("blind", ["_no_probe", "_no_witness"])
async def test_injected_blindness_is_found(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, blind: str, tmp_path: Path
) -> None:
    """Each half of the proof is needed: without it a disk that is not shared looks shared."""
    if blind == "_no_probe":
        disk.probe.write_bytes(TWO)
    else:
        monkeypatch.setattr(StoreClient, "identify", _seeing(StoreClient.identify))
        disk.staging = Path("/nowhere")
    async with serving(disk) as store:
        assert (await no_shared_disk(store))[1]
        monkeypatch.setattr(transport, blind, lambda *_: "")
        assert not (await no_shared_disk(store))[1]


def _seeing(identify: Any) -> Any:
    async def seen(self: StoreClient, witness_path: str = "") -> Any:
        answer = await identify(self, witness_path)
        answer.witness_seen = True
        return answer

    return seen
