"""The metrics page of a store that has something to show."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from agentmem.v1 import cache_store_pb2 as pb
from cache_service import metrics
from cache_service.ledger.database import READERS
from tests.cache_service.tiers.test_blocks import add, found, name, stage

from . import kv
from .conftest import Running

DISK = "agentmem_cache_disk_bytes"


async def test_sizes_and_counts_follow_the_directory(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
    block = await add(store, [1], version)
    (file,) = await found(store, block)
    (staged,) = await stage(store, name(kv.header([2])))
    Path(staged.path).write_bytes(b"half")
    assert store.metric(DISK, kind="blocks") == file.size_bytes
    assert store.metric(DISK, kind="windows") == 0
    assert store.metric(DISK, kind="staging") == 4
    assert (store.metric(DISK, kind="ledger") or 0) > 0
    assert store.metric("agentmem_cache_agents", tier="warm") == 1
    assert store.metric("agentmem_cache_agents", tier="none") == 1

    await store.cache.QuarantineBlock(pb.QuarantineBlockRequest(namespace="default", name=block, reason="?"))
    assert store.metric(DISK, kind="blocks") == 0
    assert store.metric("agentmem_cache_quarantined_total", reason="other") == 1
    assert store.metric("agentmem_cache_quarantined_total", reason="digest") == 0
    assert store.metric("agentmem_cache_agents", tier="none") == 2


async def test_every_metric_has_a_help_text_and_no_agent_in_a_label(store: Running) -> None:
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("somebody")))
    for family in store.registry.collect():
        assert family.name.startswith(("agentmem_", "grpc_server_", "process_")) and family.documentation
        labels = {label for sample in family.samples for label in sample.labels}
        assert labels <= {"kind", "tier", "reason", "service", "version"}


async def test_the_disk_says_what_is_free_and_what_must_stay(store: Running) -> None:
    store.store.warm.free = lambda: 12345
    assert store.metric("agentmem_cache_disk_free_bytes") == 12345
    assert store.metric("agentmem_cache_disk_free_floor_bytes") == store.store.warm.limits.free_bytes_floor > 0


async def page(store: Running) -> str:
    return (await asyncio.to_thread(generate_latest, store.registry)).decode()


async def test_a_database_that_fails_leaves_the_rest_of_the_page(store: Running) -> None:
    def spoil(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE files RENAME TO gone")

    await asyncio.to_thread(store.store._rows.write_blocking, spoil)
    found = await page(store)
    assert 'agentmem_cache_disk_bytes{kind="staging"} 0.0' in found
    assert 'kind="blocks"' not in found and "agentmem_cache_agents{" not in found
    assert "\nagentmem_cache_disk_free_bytes " in found
    assert 'agentmem_ledger_failures_total{reason="damaged"}' in found


async def test_a_disk_that_fails_leaves_the_rest_of_the_page(store: Running) -> None:
    def fails() -> int:
        raise OSError(5, "the disk does not answer")

    store.store.warm.free = fails
    found = await page(store)
    assert 'agentmem_cache_disk_bytes{kind="blocks"} 0.0' in found and 'agentmem_cache_agents{tier="warm"} 0.0' in found
    assert "\nagentmem_cache_disk_free_bytes " not in found
    assert "\nagentmem_cache_disk_limit_bytes " in found


@pytest.mark.parametrize("how", ["write", "read"])
async def test_a_page_does_not_wait_for_what_the_database_is_doing(
    store: Running, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is complete beside a commit, and lacks what only the database has while all that read are busy."""
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 0.05)
    begun, go_on = threading.Semaphore(0), threading.Event()
    workers = READERS if how == "read" else 1

    def long(_: sqlite3.Connection) -> None:
        begun.release()
        go_on.wait()

    database = store.store._database
    working = [asyncio.ensure_future(getattr(database, how)(long)) for _ in range(workers)]
    try:
        for _ in range(workers):
            await asyncio.to_thread(begun.acquire)
        found = await page(store)
        assert ('tier="none"' in found) is (how == "write") and 'kind="staging"' in found
    finally:
        go_on.set()
        await asyncio.gather(*working)
    assert 'tier="none"' in await page(store), "it is there again"
