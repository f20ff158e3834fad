"""store.db is removed or replaced while a store serves it: nothing that was answered is lost."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from cache_service.offline.database import DatabaseDamaged

from . import kv
from .conftest import running
from .process import ready


async def commit(channel: grpc.aio.Channel, agent: str) -> None:
    """One turn."""
    stub: Any = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
    await stub.CommitTurn(kv.turn([1, 2, 3], agent=kv.key(agent)))


async def commit_until_it_ends(process: asyncio.subprocess.Process, channel: grpc.aio.Channel) -> list[str]:
    """Agents whose turns were answered with OK."""
    answered: list[str] = []
    with suppress(grpc.aio.AioRpcError):
        for number in range(10_000):
            await commit(channel, f"late-{number}")
            answered.append(f"late-{number}")
    await process.wait()
    return answered


@pytest.mark.slow
@pytest.mark.parametrize("names", [["store.db"], ["store.db", "store.db-wal", "store.db-shm"]])
async def test_a_database_that_is_removed_is_put_back(data: Path, names: list[str]) -> None:
    async with ready(data) as (process, channel):
        await commit(channel, "early")
        for name in names:
            (data / name).unlink()
        answered = await commit_until_it_ends(process, channel)
        assert process.returncode == 75, "who started it starts it again"
    async with ready(data) as (_, channel):
        stub: Any = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        for agent in ("early", *answered):
            found = await stub.OpenCache(pb.OpenCacheRequest(key=kv.key(agent)))
            assert list(found.ledger.token_ids) == [1, 2, 3], agent
    assert sorted(path.name for path in data.glob("store.db*")) == ["store.db", "store.db-shm", "store.db-wal"]


@pytest.mark.slow
async def test_a_database_in_whose_place_is_another_is_kept_beside_it(data: Path) -> None:
    async with ready(data) as (process, channel):
        await commit(channel, "early")
        shutil.copy(data / "store.db", data / "other")
        (data / "other").replace(data / "store.db")
        answered = await commit_until_it_ends(process, channel)
        assert process.returncode == 1, "who started it must not start it again"
    (kept,) = data.glob("store.db-served-*")
    with closing(sqlite3.connect(kept)) as connection:
        found = {row[0] for row in connection.execute("SELECT agent_id FROM agents")}
    assert found == {"early", *answered}


async def test_what_was_put_aside_is_not_passed_over(data: Path) -> None:
    """Killed before what it had was store.db again: the next start would begin anew, or serve another file."""
    async with ready(data) as (_, channel):
        await commit(channel, "early")
    (data / "store.db").rename(data / "store.db-served-1")
    with pytest.raises(DatabaseDamaged, match="served-1 has what a store had"):
        async with running(data):
            pass
    assert not (data / "store.db").exists()
