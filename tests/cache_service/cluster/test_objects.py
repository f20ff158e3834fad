"""Nodes that share a place in an object store: who uploads, who fetches, and who deletes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from agentmem.kv import blockfile
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.validation import AgentKey
from cache_service.cluster.postgres.settings import Settings
from cache_service.metrics import Operation
from cache_service.store import NO_REMOTE_TIER
from cache_service.tiers import objects, replication
from cache_service.tiers.remote.contract import ObjectName
from cache_service.tiers.remote.s3 import S3Tier
from tests import s3
from tests.cache_service import kv
from tests.cache_service.cluster.several import Node, node, until
from tests.cache_service.cluster.test_nodes import rename
from tests.cache_service.tiers.remote.tier import fetch, settings, settled, tiers
from tests.cache_service.tiers.test_blocks import add

WARM, REMOTE = types_pb2.TIER_WARM, types_pb2.TIER_REMOTE


@pytest.fixture
async def two(data: Path, cluster: Settings, bucket: s3.Bucket) -> AsyncIterator[tuple[Node, Node]]:
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(node(data, cluster, name, settings(bucket))) for name in "ab"]
        yield tuple(made)  # type: ignore[misc]


async def uploaded(on: Node) -> types_pb2.AgentVersion:
    """An agent whose block is in the object store."""
    version = (await on.store.cache.CommitTurn(kv.turn([1]))).version
    await add(on.store, [1, 0], version)
    await settled(on.store)
    return version


async def test_what_one_has_uploaded_another_one_fetches(two: tuple[Node, Node]) -> None:
    a, b = two
    await uploaded(a)
    assert (await tiers(a.store, 1), await tiers(b.store, 1)) == ({1: WARM}, {1: REMOTE})
    fetched = (await fetch(b.store, 1))[1]
    assert blockfile.digest(kv.read(fetched.path)) == fetched.digest
    assert await tiers(b.store, 1) == {1: WARM}


async def test_a_file_of_two_is_uploaded_once(two: tuple[Node, Node], bucket: s3.Bucket) -> None:
    a, b = two
    version = (await a.store.cache.CommitTurn(kv.turn([1]))).version
    await asyncio.gather(add(a.store, [1, 0], version), add(b.store, [1, 0], version))
    await settled(a.store)
    await until(lambda: len(bucket.objects()) == 1)
    await settled(b.store)
    assert len(bucket.objects()) == 1


@pytest.mark.parametrize("by", [0, 1])
async def test_a_deletion_takes_the_objects_along(two: tuple[Node, Node], bucket: s3.Bucket, by: int) -> None:
    await uploaded(two[0])
    assert bucket.objects()
    await two[by].store.delete()
    assert not bucket.objects()


@pytest.mark.slow
async def test_an_upload_that_another_node_deletes_meanwhile_leaves_nothing(
    two: tuple[Node, Node], bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is erased on one node while the other one's PUT is under way."""
    a, b = two
    version = (await b.store.cache.CommitTurn(kv.turn([1]))).version
    end, erased = objects.end_uploads, asyncio.Event()
    loop = asyncio.get_running_loop()
    held = loop.create_future()

    def late(*arguments: object) -> None:
        if arguments[1]:
            loop.call_soon_threadsafe(held.cancelled() or held.done() or held.set_result, None)
            asyncio.run_coroutine_threadsafe(erased.wait(), loop).result(30)
        end(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "end_uploads", late)
    await add(b.store, [1, 0], version)
    await asyncio.wait_for(held, 30)
    assert bucket.objects()
    deletion = asyncio.ensure_future(a.store.delete())
    await until(lambda: not a.store.store._database.read_blocking(objects.present))
    assert not deletion.done(), "it waits for the object"
    erased.set()
    await deletion
    await until(lambda: not bucket.objects())


async def test_uploads_go_on_whatever_the_server_says(
    two: tuple[Node, Node], bucket: s3.Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    """A table is away for a moment, as while an operator brings a backup back; the object store is not to blame."""
    a, b = two
    rename(a.store.store, "object_deletions", "away")
    version = (await a.store.cache.CommitTurn(kv.turn([1]))).version  # which wakes both
    await until(lambda: caplog.messages.count("rows of objects cannot be read or written") >= 2)
    assert not failures(a) and not failures(b)
    rename(a.store.store, "away", "object_deletions")
    await add(a.store, [1, 0], version)
    await until(bucket.objects)


def failures(of: Node) -> float:
    """How often a node's work for the object store has failed."""
    each = (of.store.metric("agentmem_remote_failures_total", operation=operation) for operation in Operation)
    return sum(count or 0 for count in each)


async def test_an_upload_that_died_with_its_node_is_made_by_another(
    data: Path, cluster: Settings, bucket: s3.Bucket
) -> None:
    """Its row is there, and no object: the next one who has the file uploads it, under a key of its own."""
    async with node(data, cluster, "b", settings(bucket)) as b:
        version = await uploaded(b)
        (first,) = bucket.objects()
        bucket.delete(first)
        b.store.store._database.write_blocking(
            lambda c: c.execute("UPDATE objects SET present = 0, uploader = 'gone'") and None
        )
        async with node(data, cluster, "a", settings(bucket)) as a:
            await add(a.store, [1, 0], version)
            await settled(a.store)
            (second,) = bucket.objects()
            assert second != first
            assert (await fetch(a.store, 1))[1].digest


async def test_a_node_that_starts_again_without_an_object_store_holds_no_deletion_back(
    data: Path, cluster: Settings, bucket: s3.Bucket
) -> None:
    async with node(data, cluster, "b", settings(bucket)) as b:
        await uploaded(b)
        b.store.store._database.write_blocking(
            lambda c: c.execute("UPDATE objects SET present = 0, uploader = 'a'") and None
        )
        async with node(data, cluster, "a"):
            await erased(b)
            await until(lambda: not bucket.objects())


async def erased(on: Node) -> None:
    """Delete the agent, as often as the answer is that something is still to be waited for."""
    async with asyncio.timeout(60):
        while True:
            try:
                await on.store.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key(), allow_missing=True))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                return


@pytest.mark.parametrize("by", ["a", "b"])
@pytest.mark.parametrize("of_a", ["no object store", "bad credentials"])
async def test_a_first_node_that_cannot_delete_leaves_deletions_to_the_next(
    data: Path, cluster: Settings, bucket: s3.Bucket, by: str, of_a: str
) -> None:
    """Credentials were good when it started; now it can neither read the manifest nor delete."""
    with s3.proxy(bucket.endpoint) as proxy:
        remote = NO_REMOTE_TIER if of_a == "no object store" else settings(bucket, proxy.address)
        async with node(data, cluster, "a", remote) as a, node(data, cluster, "b", settings(bucket)) as b:
            await uploaded(b)
            assert bucket.objects()
            proxy.fault = lambda method, path: 403
            await erased(a if by == "a" else b)
            assert not bucket.objects()


@pytest.fixture
def held_puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """PUTs wait: whether one does, and what lets them go on."""
    waits, goes_on, put = threading.Event(), threading.Event(), S3Tier.put

    def held(self: S3Tier, name: ObjectName, path: Path) -> None:
        held_file = path.with_name("held")
        held_file.write_bytes(path.read_bytes())
        waits.set()
        goes_on.wait(60)
        put(self, name, held_file)

    monkeypatch.setattr(S3Tier, "put", held)
    yield waits, goes_on
    goes_on.set()


async def test_an_upload_that_is_refused_holds_no_deletion_back(
    data: Path, cluster: Settings, bucket: s3.Bucket
) -> None:
    """Its row names a node that is there, and cannot delete what it may have put."""
    with s3.proxy(bucket.endpoint) as proxy:
        async with (
            node(data, cluster, "a", settings(bucket, proxy.address)) as a,
            node(data, cluster, "b", settings(bucket)) as b,
        ):
            proxy.fault = lambda method, path: 403
            await add(a.store, [1, 0], (await a.store.cache.CommitTurn(kv.turn([1]))).version)
            await until(lambda: a.store.metric("agentmem_remote_failures_total", operation="upload"))
            await erased(b)
            assert not await b.store.store._database.read(objects.waiting, AgentKey("default", "ada", "m"))


async def test_a_put_after_its_nodes_lease_is_over_leaves_nothing(
    two: tuple[Node, Node], bucket: s3.Bucket, held_puts: tuple[threading.Event, threading.Event]
) -> None:
    """The agent is erased everywhere when the PUT arrives of a node that was taken for gone."""
    (a, b), (waits, goes_on) = two, held_puts
    await add(b.store, [1, 0], await b.store.commit([1]))
    await until(waits.is_set)
    comes_back = b.cut_off()
    membership = a.membership
    await until(lambda: membership.live("b") is None)
    await erased(a)
    assert not bucket.objects()
    goes_on.set()
    await until(lambda: b.store.metric("agentmem_remote_uploads_total") == 1)
    comes_back()
    await until(lambda: not bucket.objects())
    assert not await a.store.store._database.read(objects.waiting, AgentKey("default", "ada", "m"))


@pytest.mark.slow
async def test_rows_and_objects_are_compared_now_and_then(
    two: tuple[Node, Node], bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects without a row are deleted, whoever put them; used ones stay."""
    monkeypatch.setattr(replication, "_COMPARE_SECONDS", 0.0)
    await uploaded(two[1])
    (used,) = bucket.objects()
    digest = used.rpartition("-")[0].rpartition("-")[2]
    bucket.write(used.replace(digest, "0" * len(digest)), b"of a node that is gone")
    await until(lambda: bucket.objects() == {used})
