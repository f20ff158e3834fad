"""The process: one per directory, private files, clear refusals, an orderly end, and one where store.db is removed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from cache_service.__main__ import main
from cache_service.files.directory import DirectoryUnusable
from cache_service.store import Store
from tests.cache_service import kv
from tests.cache_service.process import ready, spawn


def modes(data: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}


def strangers(data: Path) -> dict[str, int]:
    found = {}
    for path in (data, *data.rglob("*")):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            continue  # gone since it was listed
        if mode & 0o777 != (0o700 if stat.S_ISDIR(mode) else 0o600):
            found[str(path)] = mode
    return found


@asynccontextmanager
async def watched(data: Path) -> AsyncIterator[None]:
    """All the while, nothing in the directory has other modes, not even for a moment that can be seen."""
    problems: dict[str, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if data.exists():
                problems.update(strangers(data))

    watching = asyncio.create_task(asyncio.to_thread(watch))
    try:
        yield
    finally:
        over.set()
        await watching
    assert problems == {}


async def staged(store: Any) -> pb.StoredFile:
    name = pb.FileName(kind=pb.FILE_KIND_BLOCK, chain_hash=kv.header([1]).chain_hash)
    (file,) = (await store.StageBlocks(pb.StageBlocksRequest(namespace="default", names=[name]))).files
    return kv.write(file, kv.header([1]))


@pytest.mark.parametrize("umask", [0o000, 0o777])
async def test_only_the_owner_may_read_whatever_the_umask_is(data: Path, umask: int) -> None:
    async with ready(data, umask=umask) as (process, channel):
        store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        version = (await store.CommitTurn(kv.turn([1]))).version
        file = await staged(store)
        Path(file.path).chmod(0o666)
        await store.PublishBlocks(
            pb.PublishBlocksRequest(key=kv.key(), version=version, files=[file], fingerprint=kv.FINGERPRINT)
        )
        found = modes(data)
        assert sum(path.endswith(".safetensors") for path in found) == 1
        plain = ("lock", "store.db", "store.db-wal", "store.db-shm", "run/store.sock", "run/store.sock.lock")
        assert {str(data / path) for path in plain} <= found.keys()
        for path, mode in found.items():
            assert mode == (0o700 if Path(path).is_dir() else 0o600), path
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o000, 0o777])
async def test_nobody_else_may_read_at_any_moment_also_after_a_kill(data: Path, umask: int) -> None:
    async with watched(data):
        for _ in range(2):
            async with ready(data, umask=umask) as (process, channel):
                store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
                await store.CommitTurn(kv.turn([1], agent=kv.key(str(process.pid))))
                assert (data / "store.db-wal").exists()
                process.kill()
                await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(data: Path, number: signal.Signals) -> None:
    async with ready(data) as (process, channel):
        await cache_store_pb2_grpc.CacheStoreServiceStub(channel).CommitTurn(kv.turn([1]))
        process.send_signal(number)
        _, log = await process.communicate()
    assert process.returncode == 0 and b"Traceback" not in log
    assert not (data / "store.db-wal").exists(), "the database was closed"
    assert not (data / "run" / "store.sock").exists()


@pytest.mark.slow
async def test_a_second_store_is_refused_by_any_name_and_harms_nothing(data: Path) -> None:
    async with ready(data) as (_, channel):
        store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        file = await staged(store)
        alias = data.with_name("alias")
        alias.symlink_to(data)
        for number, other in enumerate((data, alias, data / "blocks" / "..")):
            second = await spawn(other, f"--run-dir={data.with_name(f'run{number}')}")
            out, problem = await second.communicate()
            assert second.returncode == 1 and out == b""
            assert f"another store is using {other}".encode() in problem and b"Traceback" not in problem
        published = await store.PublishBlocks(
            pb.PublishBlocksRequest(key=kv.key(), files=[file], fingerprint=kv.FINGERPRINT)
        )
        assert published.published == 1, "what was being written was not swept"


@pytest.mark.slow
async def test_a_socket_that_is_taken_is_refused(data: Path) -> None:
    async with ready(data):
        third = await spawn(data.with_name("e"), f"--run-dir={data}/run")
        _, problem = await third.communicate()
        assert third.returncode == 2 and b"another server holds" in problem and b"Traceback" not in problem


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--grace=-1", "grace"),
        ("--listen=0.0.0.0:1", "listen"),
        ("--metrics=nowhere", "metrics"),
        ("--metrics=127.0.0.1:65536", "metrics"),
        ("--log-level=loud", "log_level: 'loud' is none of debug, info, warning, error"),
        ("--unknown=1", "--unknown"),
    ],
)
def test_a_wrong_setting_is_named(argument: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([argument])
    assert stopped.value.code == 2 and told in capsys.readouterr().err


async def test_a_directory_that_cannot_be_opened_is_named(data: Path) -> None:
    kv.make_directory(data)
    (data / "store.db").write_bytes(b"no database" * 1000)
    process = await spawn(data)
    _, problem = await process.communicate()
    assert process.returncode == 1
    assert problem.decode().startswith(f"agentmem-store: {data}/store.db is damaged (file is not a database)")


def test_a_directory_that_is_everybodys_is_left_alone(data: Path) -> None:
    kv.make_directory(data, 0o1777)
    with pytest.raises(DirectoryUnusable, match="--data"):
        Store(data, CollectorRegistry())
    assert list(modes(data).values()) == [0o777]


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_store_ends_whose_database_is_not_there_any_more(data: Path, is_replaced: bool) -> None:
    async with ready(data) as (process, channel):
        stub: Any = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        await stub.CommitTurn(kv.turn([1, 2, 3]))
        if is_replaced:
            shutil.copy(data / "store.db", data / "other")
            (data / "other").replace(data / "store.db")
        else:
            (data / "store.db").unlink()
        await process.wait()
        assert process.returncode == 1, "who started it must not start it again"
