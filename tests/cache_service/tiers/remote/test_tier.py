"""The remote tier of a running store: uploaded once, evicted to, fetched from, verified, and never wrong."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.files.disk import open_regular
from tests import s3
from tests.cache_service import kv
from tests.cache_service.conftest import Running, running
from tests.cache_service.tiers.test_blocks import name, on_disk, publish
from tests.cache_service.tiers.test_warm import evicted, speak

from .tier import fetch, keys, look, remote, settled, tiers, until

WARM, REMOTE = types_pb2.TIER_WARM, types_pb2.TIER_REMOTE


@pytest.fixture
async def store(data: Path, bucket: s3.Bucket) -> AsyncIterator[Running]:
    async with remote(data, bucket) as store:
        yield store


async def test_what_is_published_is_uploaded_once(data: Path, bucket: s3.Bucket, proxy: s3.Proxy) -> None:
    async with remote(data, bucket, proxy.address) as store:
        version = await speak(store, "ada", [1, 2])
        await settled(store)
        uploaded = proxy.seen["PUT"]
        version = await speak(store, "ada", [1, 2, 3], version)
        await settled(store)
        assert proxy.seen["PUT"] == uploaded + 1
        assert len(keys(bucket, [1, 2, 3])) == len(bucket.objects()) == 3
        for number, file in (await look(store, 1, 2, 3)).items():
            assert file.tier == WARM
            assert bucket.read(keys(bucket, [number])[0]) == kv.read(file.path)
        assert store.metric("agentmem_remote_uploads_total") == 3
        assert store.metric("agentmem_remote_up") == 1
        assert store.metric("agentmem_remote_bytes") == sum(
            Path(str(data / path)).stat().st_size for path in on_disk(data)
        )


async def test_what_is_evicted_comes_back(store: Running, data: Path, bucket: s3.Bucket) -> None:
    await speak(store, "ada", [1, 2])
    await settled(store)
    before = {number: kv.read(file.path) for number, file in (await look(store, 1, 2)).items()}
    await store.evict()
    assert not on_disk(data)
    found = await look(store, 1, 2)
    assert {(file.tier, file.path) for file in found.values()} == {(REMOTE, "")}
    assert (await store.agent()).tier == REMOTE
    assert store.metric("agentmem_cache_agents", tier="remote") == 1
    assert not await evicted(store, "ada", 1, 2), "it is there, only slower"
    fetched = await fetch(store, 1, 2)
    assert {number: kv.read(file.path) for number, file in fetched.items()} == before
    assert {file.tier for file in fetched.values()} == {WARM}
    assert await look(store, 1, 2) == fetched
    assert (await store.agent()).tier == WARM
    assert store.metric("agentmem_remote_fetches_total", result="warm") == 2
    await settled(store)
    assert len(bucket.objects()) == 2 and store.metric("agentmem_remote_uploads_total") == 2


async def test_an_object_that_another_agent_publishes_without_its_file_stays_for_it(
    store: Running, bucket: s3.Bucket
) -> None:
    """Its file was evicted while that agent spoke: the object goes with the last of both, not with the first."""
    await speak(store, "ada", [1])
    await settled(store)
    await store.evict()
    eve = (await store.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))).version
    await publish(store, [], eve, [name(kv.header([1, 0]))], kv.key("eve"))
    await store.delete(kv.key("ada"))
    await settled(store)
    assert await tiers(store, 1) == {1: REMOTE}
    await store.delete(kv.key("eve"))
    assert bucket.objects() == set()


async def test_an_object_stays_for_a_snapshot_whose_files_are_published_late(store: Running, bucket: s3.Bucket) -> None:
    late = (await store.cache.CommitTurn(kv.turn([1]))).version
    await store.snapshot("s")
    await speak(store, "ada", [2], (await store.cache.CommitTurn(kv.turn([2], late, 0))).version)
    await speak(store, "eve", [1])
    await settled(store)
    await publish(store, [], late, [name(kv.header([1, 0]))], kv.key())
    await settled(store)
    await store.delete(kv.key("eve"))
    assert len(keys(bucket, [1])) == 1


@pytest.mark.parametrize("fault", ["flipped", "truncated", "another block", "missing"])
async def test_an_object_that_is_not_what_was_uploaded_is_a_miss_and_forgotten(
    store: Running, data: Path, bucket: s3.Bucket, fault: str
) -> None:
    await speak(store, "ada", [1, 2])
    await settled(store)
    await store.evict()
    bad, good = keys(bucket, [1, 2])
    content = bucket.read(bad)
    if fault == "missing":
        bucket.delete(bad)
    else:
        bucket.write(
            bad,
            {
                "flipped": content[:-1] + bytes([content[-1] ^ 1]),
                "truncated": content[:-1],
                "another block": bucket.read(good),
            }[fault],
        )
    assert list(await fetch(store, 1, 2)) == [2]
    assert await tiers(store, 1, 2) == {2: WARM}
    result = "missing" if fault == "missing" else "damaged"
    assert store.metric("agentmem_remote_fetches_total", result=result) == 1
    await settled(store)
    assert bucket.objects() == {good}
    assert not list((data / "staging").iterdir())


async def test_an_object_store_that_fails_is_a_miss_and_nothing_is_forgotten(
    data: Path, bucket: s3.Bucket, proxy: s3.Proxy
) -> None:
    async with remote(data, bucket, proxy.address) as store:
        await speak(store, "ada", [1, 2])
        await settled(store)
        await store.evict()
        proxy.fault = lambda method, path: 503 if keys(bucket, [1])[0] in path else 0
        assert list(await fetch(store, 1, 2)) == [2]
        assert store.metric("agentmem_remote_failures_total", operation="fetch") == 1
        assert await tiers(store, 1, 2) == {1: REMOTE, 2: WARM}
        proxy.fault = lambda method, path: 0
        assert list(await fetch(store, 1)) == [1]


async def test_where_the_ledger_cannot_be_written_nothing_comes_and_nothing_is_forgotten(
    store: Running, bucket: s3.Bucket
) -> None:
    await speak(store, "ada", [1, 2])
    await settled(store)
    await store.evict()
    bucket.delete(keys(bucket, [1])[0])
    await query_only(store, True)
    assert await fetch(store, 1, 2) == {}
    assert store.metric("agentmem_remote_failures_total", operation="fetch") == 2
    await query_only(store, False)
    assert await tiers(store, 1, 2) == {1: REMOTE, 2: REMOTE}


async def query_only(store: Running, on: bool) -> None:
    for database in (store.store._database, store.store._rows):
        await asyncio.wrap_future(database._thread.submit(database._connection.execute, f"PRAGMA query_only = {on}"))


async def test_uploads_that_fail_are_tried_again(data: Path, bucket: s3.Bucket, proxy: s3.Proxy) -> None:
    async with remote(data, bucket, proxy.address) as store:
        proxy.fault = lambda method, path: 503 if method == "PUT" else 0
        await speak(store, "ada", [1, 2])
        await until(lambda: store.metric("agentmem_remote_failures_total", operation="upload"))
        assert store.metric("agentmem_remote_up") == 0
        assert store.metric("agentmem_remote_backlog", operation="uploads") == 2
        proxy.fault = lambda method, path: 0
        await settled(store)
        assert len(bucket.objects()) == 2
        assert store.metric("agentmem_remote_up") == 1


async def test_what_was_not_uploaded_yet_is_lost_by_an_eviction(data: Path, bucket: s3.Bucket, proxy: s3.Proxy) -> None:
    async with remote(data, bucket, proxy.address) as store:
        proxy.fault = lambda method, path: 503 if method == "PUT" else 0
        await speak(store, "ada", [1])
        await until(lambda: store.metric("agentmem_remote_failures_total", operation="upload"))
        await store.evict()
        assert await tiers(store, 1) == {} and await evicted(store, "ada", 1)
        proxy.fault = lambda method, path: 0
        await settled(store)
        assert bucket.objects() == set()


async def test_a_file_that_is_damaged_on_the_disk_is_not_uploaded(
    data: Path, bucket: s3.Bucket, proxy: s3.Proxy
) -> None:
    proxy.fault = lambda method, path: 503
    async with remote(data, bucket, proxy.address) as store:
        await speak(store, "ada", [1, 2, 3])
        files = await look(store, 1, 2)
        Path(files[1].path).write_bytes(b"x" * files[1].size_bytes)
        Path(files[2].path).unlink()
        proxy.fault = lambda method, path: 0
        await settled(store)
        assert len(keys(bucket, [3])) == len(bucket.objects()) == 1
        await until(lambda: store.metric("agentmem_cache_quarantined_total", reason="digest"))
        assert 1 not in await tiers(store, 1, 2)


async def test_a_file_that_cannot_be_opened_now_is_uploaded_after_the_others(
    data: Path, bucket: s3.Bucket, proxy: s3.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.fault = lambda method, path: 503
    async with remote(data, bucket, proxy.address) as store:
        await speak(store, "ada", [1, 2])
        path = (await look(store, 1))[1].path

        def too_many(asked: Path) -> int:
            if str(asked) == path:
                raise OSError(errno.EMFILE, "Too many open files")
            return open_regular(asked)

        with monkeypatch.context() as patch:
            patch.setattr("cache_service.tiers.remote.s3.open_regular", too_many)
            proxy.fault = lambda method, path: 0
            await until(lambda: store.metric("agentmem_remote_backlog", operation="uploads") == 1)
            assert len(keys(bucket, [2])) == len(bucket.objects()) == 1
        await settled(store)
        assert len(keys(bucket, [1, 2])) == 2
        assert store.metric("agentmem_cache_quarantined_total", reason="digest") == 0


async def test_a_process_that_can_open_no_file_takes_no_object_for_damaged(
    store: Running, bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    await speak(store, "ada", [1])
    await settled(store)
    await store.evict()

    def too_many(_: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("cache_service.files.publication.open_regular", too_many)
    assert await fetch(store, 1) == {}
    assert store.metric("agentmem_remote_fetches_total", result="failed") == 1
    await settled(store)
    assert await tiers(store, 1) == {1: REMOTE} and bucket.objects()


async def test_a_file_that_is_damaged_on_the_disk_is_fetched_again(store: Running, bucket: s3.Bucket) -> None:
    await speak(store, "ada", [1])
    await settled(store)
    file = (await look(store, 1))[1]
    content = kv.read(file.path)
    Path(file.path).write_bytes(b"x")
    await store.cache.QuarantineBlock(
        pb.QuarantineBlockRequest(namespace="default", name=name(kv.header([1, 0])), reason="digest")
    )
    assert await tiers(store, 1) == {1: REMOTE}
    assert kv.read((await fetch(store, 1))[1].path) == content


async def test_evicting_from_the_remote_tier_leaves_nothing(store: Running, data: Path, bucket: s3.Bucket) -> None:
    await speak(store, "ada", [1, 2])
    await settled(store)
    await store.evict(tier=REMOTE)
    await settled(store)
    assert not bucket.objects() and not on_disk(data)
    assert (await store.agent()).tier == types_pb2.TIER_NONE
    assert await evicted(store, "ada", 1, 2)


async def test_a_ttl_ends_kv_in_every_tier(store: Running, data: Path, bucket: s3.Bucket) -> None:
    await speak(store, "ada", [1, 2])
    await settled(store)
    await store.evict()
    request = agent_pb2.SetAgentTtlRequest(key=kv.key())
    request.ttl.FromNanoseconds(10**9)
    await store.agents.SetAgentTtl(request)
    await store.store.upkeep(2**62)
    await settled(store)
    assert not bucket.objects() and not on_disk(data)
    assert (await store.agent()).tier == types_pb2.TIER_NONE


async def test_a_namespace_cannot_fetch_anothers_blocks(store: Running) -> None:
    await speak(store, "ada", [1])
    await settled(store)
    await store.evict()
    header = kv.header([1, 0])
    request = pb.FetchBlocksRequest(namespace="other", names=[name(header)])
    assert not (await store.cache.FetchBlocks(request)).files
    key = kv.key("", "other")
    opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=key, block_hashes=[header.chain_hash]))
    assert not opened.files


async def test_without_an_object_store_there_is_nothing_of_it(data: Path) -> None:
    async with running(data) as store:
        await speak(store, "ada", [1])
        assert list(await fetch(store, 1, 2)) == [1]
        await store.evict()
        assert await tiers(store, 1) == {} and await evicted(store, "ada", 1)
        assert store.metric("agentmem_remote_backlog", operation="uploads") is None
