"""Reading notes the use and writes nothing; the next commit brings the notes along."""

import sqlite3
from contextlib import closing
from pathlib import Path

from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running
from tests.cache_service.tiers.test_blocks import add


def used(data: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(data / "store.db")) as connection:
        (agent,) = connection.execute("SELECT used FROM agents WHERE agent_id = 'ada'").fetchone()
    with closing(sqlite3.connect(data / "warm.db")) as connection:
        (file,) = connection.execute("SELECT used FROM files ORDER BY created").fetchone()
    return agent, file


def wal(data: Path) -> list[tuple[int, int]]:
    found = [(data / f"{name}-wal").stat() for name in ("store.db", "warm.db")]
    return [(each.st_size, each.st_mtime_ns) for each in found]


async def test_opening_writes_nothing_and_the_next_commit_writes_the_use(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    block = await add(store, [1], version)
    before, written = used(store.data), wal(store.data)
    await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(), block_hashes=[block.chain_hash]))
    assert wal(store.data) == written and used(store.data) == before
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
    await add(store, [2])
    after = used(store.data)
    assert after[0] > before[0] and after[1] > before[1]


async def test_to_peek_is_no_use(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    block = await add(store, [1], version)
    before = used(store.data)
    request = pb.OpenCacheRequest(key=kv.key(), block_hashes=[block.chain_hash], peek=True)
    assert len((await store.cache.OpenCache(request)).files) == 1
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
    assert used(store.data) == before
