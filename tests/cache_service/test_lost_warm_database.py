"""warm.db is lost, damaged, another one's, or newer: the store serves, no ledger is touched, and deletions delete."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentmem.errors import Unavailable
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from cache_service.files import warm_database
from cache_service.offline.check import check
from cache_service.offline.database import DatabaseDamaged
from cache_service.offline.recover import recover
from cache_service.store import Store

from . import kv
from .conftest import running
from .invariants import paths
from .offline.directory import ADA, database_of, everything, fill, fill_branches, ledgers, publish, query, zero_table
from .offline.test_recover import HELD, new
from .process import ready
from .scenarios import Scenario
from .test_crash_matrix import explore

LOST: dict[str, Callable[[Path], object]] = {
    "missing": lambda data: (data / "warm.db").unlink(),
    "empty": lambda data: (data / "warm.db").write_bytes(b""),
    "no database": lambda data: (data / "warm.db").write_bytes(os.urandom(10_000)),
    "cut off": lambda data: os.truncate(data / "warm.db", 6000),
    "a page of zeros": lambda data: zero_table(data, "files"),
    "an index of zeros": lambda data: zero_table(data, "held_by_file"),
    "of a newer version": lambda data: set_version(data / "warm.db", warm_database.VERSION + 1),
    "of a killed store whose log is lost": lambda data: (data / "warm.db").write_bytes(
        (data / "warm.db").read_bytes()[:4096]
    ),
}


def set_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("loss", LOST)
async def test_without_warm_db_the_store_serves_and_ledgers_are_what_they_were(data: Path, loss: str) -> None:
    await fill_branches(data)
    kept = ledgers(data)
    held, before = set(query(data, HELD)), paths(data)
    LOST[loss](data)
    async with running(data) as store:
        opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key("eve"), peek=True))
        assert list(opened.ledger.token_ids) == ADA
        assert (await store.agent("eve")).warm_tokens == len(ADA), "its KV was found"
        await publish(store, ADA, opened.version, "eve")
        assert (await store.agent("eve")).warm_tokens == len(ADA), "whoever speaks again has KV again"
    assert ledgers(data) == kept
    assert check(data).findings == []
    assert held <= set(query(data, HELD)) and paths(data) == before


@pytest.mark.slow
@pytest.mark.timeout(1200)  # It starts a store for each step.
async def test_a_kill_while_it_is_made_anew_loses_nothing_of_it(data: Path, fault_shim: Path) -> None:
    await fill_branches(data)
    (data / "warm.db").unlink()
    for leftover in (*data.glob("store.sock*"), data / "probe"):
        leftover.unlink(missing_ok=True)
    counts, problems = await explore(fault_shim, data, [Scenario("start without warm.db", None)])
    assert counts.total() > 10
    assert not problems, f"{len(problems)} of {counts.total()} points:\n" + "\n".join(problems[:10])


@pytest.mark.parametrize("loss", LOST)
async def test_a_deletion_of_before_or_after_the_loss_leaves_no_file(data: Path, loss: str) -> None:
    await fill(data)
    mine = {row[0].hex() for row in query(data, "SELECT chain_hash FROM files WHERE agent_id = 'ada'")}
    LOST[loss](data)
    async with running(data) as store:
        await store.delete()
        await store.delete(kv.key("eve"))
    assert mine and not any(Path(path).stem in mine for path in paths(data))


async def test_the_warm_db_of_another_directory_is_refused_until_it_is_deleted(data: Path) -> None:
    other = data.with_name("other")
    await fill_branches(other)
    await fill(data)
    shutil.copy(other / "warm.db", data / "warm.db")
    with pytest.raises(DatabaseDamaged, match=r"delete warm\.db"):
        async with running(data):
            pass
    (data / "warm.db").unlink()
    async with running(data) as store:
        assert await store.tokens("ada") == ADA


async def test_an_older_store_db_beside_a_newer_warm_db(data: Path) -> None:
    """A backup of store.db was put in its place: the changes that warm.db has followed are not those to come."""
    await fill(data)
    backup = Path(shutil.copy(data / "store.db", data.with_name("backup.db")))
    async with running(data) as store:
        for number in range(3):
            version = (await store.cache.CommitTurn(kv.turn([1, number], agent=kv.key(f"late-{number}")))).version
            await publish(store, [1, number], version, f"late-{number}")
        await store.delete(kv.key("bob"))
        await store.delete(kv.key("late-0"))
    shutil.copy(backup, data / "store.db")
    async with running(data) as store:
        assert await store.tokens("ada") == ADA and await store.tokens("late-1") == []
        await store.delete()
        await store.delete(kv.key("eve"))
    assert check(data).findings == []
    assert not any(row[0] in ("ada", "eve") for row in query(data, "SELECT agent_id FROM files"))


async def test_a_copy_of_store_db_alone_is_a_backup(data: Path) -> None:
    await fill_branches(data)
    copy = data.with_name("copy")
    copy.mkdir(mode=0o700)
    shutil.copy(data / "store.db", copy / "store.db")
    (copy / "store.db").chmod(0o600)
    async with running(copy) as store:
        assert await store.tokens("eve") == ADA and (await store.agent("eve")).warm_tokens == 0
    assert ledgers(copy) == ledgers(data) and check(copy).findings == []


@pytest.mark.slow
async def test_warm_db_is_removed_under_the_store(data: Path) -> None:
    """Ledgers go on; the next start creates it."""
    async with ready(data) as (process, channel):
        cache: Any = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        await cache.CommitTurn(kv.turn([1, 2, 3]))
        (data / "warm.db").unlink()
        await cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    async with running(data) as store:
        assert await store.tokens("ada") == [1, 2, 3] and await store.tokens("eve") == [1]


@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, "missing", "of a newer version"])
def test_a_disk_that_cannot_be_written_to_is_refused_in_words(data: Path, loss: str | None) -> None:
    """Mounted read-only: no start."""
    asyncio.run(fill(data))
    if loss:
        LOST[loss](data)
    mount = f"mount --bind {data} {data} && mount -o remount,ro,bind {data}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("a read-only file system cannot be mounted here")

    line = f"exec {sys.executable} -m cache_service --data {data} --listen unix:{data.parent}/s.sock --metrics="
    command = ["unshare", "-rm", "sh", "-c", f"{mount} && {line}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    told = ended.stdout + ended.stderr
    assert ended.returncode in (1, 75) and "Read-only file system" in told and "Traceback" not in told, told


async def test_warm_db_that_another_program_holds_is_told_to_be_tried_again(data: Path) -> None:
    await fill(data)
    with closing(sqlite3.connect(data / "warm.db", isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("UPDATE followed SET change = change")
        with pytest.raises(Unavailable, match="another program"):
            Store(data, CollectorRegistry())
        assert database_of(data, "files").exists(), "it is not taken for damaged"
    async with running(data) as store:
        assert (await store.agent("ada")).warm_tokens == len(ADA)


@pytest.mark.parametrize("content", [None, b"", bytes(8192)], ids=["missing", "empty", "zeros"])
async def test_recovery_does_not_need_it(data: Path, content: bytes | None) -> None:
    await fill_branches(data)
    held = query(data, HELD)
    (data / "warm.db").unlink() if content is None else (data / "warm.db").write_bytes(content)
    before = everything(data)
    found = recover(data, new(data))
    assert found.is_whole and everything(data) == before
    async with running(new(data)):
        pass
    assert check(new(data)).findings == []
    assert set(held) <= set(query(new(data), HELD))
