"""The process: one per directory, private files, clear refusals, an orderly end."""

import signal
import sqlite3
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from cache_service.__main__ import main
from cache_service.files import DirectoryUnusable
from cache_service.schema import SchemaTooNew
from cache_service.store import Store

from . import kv
from .process import ready, spawn


def modes(data: Path) -> dict[str, int]:
    """Permission bits of everything in the directory, itself included."""
    return {str(path): path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}


@pytest.mark.parametrize("umask", [0o000, 0o777])
async def test_only_the_owner_may_read_whatever_the_umask_is(data: Path, umask: int) -> None:
    async with ready(data, umask=umask) as (process, channel):
        store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        version = (await store.CommitTurn(kv.turn([1]))).version
        for tokens in ([1], [2]):
            header = kv.header(tokens)
            name = pb.FileName(kind=pb.FILE_KIND_BLOCK, chain_hash=header.chain_hash)
            staged = await store.StageBlocks(pb.StageBlocksRequest(namespace="default", names=[name]))
            file = kv.write(staged.files[0], header)
            kv.open_to_all(file.path)
            await store.PublishBlocks(
                pb.PublishBlocksRequest(key=kv.key(), version=version, files=[file], fingerprint=kv.FINGERPRINT)
            )
        await store.QuarantineBlock(pb.QuarantineBlockRequest(namespace="default", name=name, reason="digest"))
        found = modes(data)
        assert sum(path.endswith(".safetensors") for path in found) == 2
        assert sum(path.endswith((".reason.json", "store.db", "store.db-wal", "store.sock")) for path in found) == 4
        for path, mode in found.items():
            assert mode == (0o700 if kv.is_directory(path) else 0o600), path
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(data: Path, number: signal.Signals) -> None:
    async with ready(data) as (process, channel):
        await cache_store_pb2_grpc.CacheStoreServiceStub(channel).CommitTurn(kv.turn([1]))
        process.send_signal(number)
        _, log = await process.communicate()
    assert process.returncode == 0 and b"Traceback" not in log
    assert not kv.exists(data / "store.db-wal"), "the database was closed"
    assert not kv.exists(data / "run" / "store.sock")


async def test_a_directory_or_a_socket_that_is_taken_is_refused(data: Path) -> None:
    async with ready(data):
        second = await spawn(data, f"--run-dir={data}/other")
        _, problem = await second.communicate()
        assert second.returncode == 1
        assert b"another store is using" in problem and b"Traceback" not in problem
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
    assert problem.decode() == f"agentmem-store: cannot open {data}: file is not a database\n"


def test_a_store_that_cannot_open_holds_nothing(data: Path) -> None:
    kv.make_directory(data)
    connection = sqlite3.connect(data / "store.db")
    connection.execute("PRAGMA user_version = 99")
    for _ in range(2):
        with pytest.raises(SchemaTooNew, match="use a newer agentmem"):
            Store(data, CollectorRegistry())
    connection.execute("PRAGMA user_version = 0")
    connection.close()
    Store(data, CollectorRegistry()).close()


def test_a_directory_that_is_everybodys_is_left_alone(data: Path) -> None:
    kv.make_directory(data, 0o1777)
    with pytest.raises(DirectoryUnusable, match="--data"):
        Store(data, CollectorRegistry())
    assert list(modes(data).values()) == [0o777]
