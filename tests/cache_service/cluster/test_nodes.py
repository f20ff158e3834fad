"""Two stores on one ledger: who is there, where an agent is, and what all of them have to follow."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cluster_pb2
from agentmem.validation import AgentKey
from cache_service.cluster import nodes
from cache_service.cluster.clock import SharedClock
from cache_service.cluster.postgres.settings import Settings
from cache_service.files.directory import DirectoryUnusable
from cache_service.ledger import kv_changes
from cache_service.ledger.clock import BOOT_CLOCK
from cache_service.store import Store
from tests.cache_service import kv
from tests.cache_service.cluster.several import MODEL, Node, node, until
from tests.cache_service.conftest import fails, running
from tests.cache_service.tiers.test_blocks import add, found, on_disk


async def test_nodes_learn_of_each_other(two: tuple[Node, Node]) -> None:
    a, b = two
    await b.sync()
    async with asyncio.timeout(30):
        while not (seen := await a.sync()).keys() >= {"a", "b"} or not seen["b"].ready:
            await asyncio.sleep(0.05)
    assert (seen["b"].address, seen["b"].models[0], seen["b"].load) == ("b.local:1", MODEL, 0)
    assert 0 < seen["b"].expires_in.ToNanoseconds() <= nodes.LEASE


async def test_a_node_whose_gateway_is_silent_is_not_ready(
    two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    monkeypatch.setattr("cache_service.cluster.membership.SILENT_SECONDS", 0.2)
    monkeypatch.setattr("cache_service.cluster.membership.BEAT_SECONDS", 0.1)
    await b.sync()
    async with asyncio.timeout(30):
        while not (await a.sync()).get("b", cluster_pb2.Node()).ready:
            await asyncio.sleep(0.05)
            await b.sync()
        while (await a.sync())["b"].ready:
            await asyncio.sleep(0.05)


async def test_where_an_agent_is(two: tuple[Node, Node]) -> None:
    a, b = two
    assert await a.locate() == ("", "")
    version = (await b.store.cache.CommitTurn(kv.turn([1]))).version
    assert await a.locate() == ("", "b")
    await a.sync(kv.key())
    await until_located(b, ("a", "b"))
    await a.store.cache.CommitTurn(kv.turn([2], version, keep=1))
    await a.sync()
    await until_located(b, ("", "a"))


async def until_located(asked: Node, where: tuple[str, str]) -> None:
    async with asyncio.timeout(30):
        while await asked.locate() != where:
            await asyncio.sleep(0.05)


async def test_an_erasure_reaches_the_files_of_all(two: tuple[Node, Node]) -> None:
    """Before it is answered, and the ledger names the agent no longer then."""
    a, b = two
    version = (await a.store.cache.CommitTurn(kv.turn([1]))).version
    await add(a.store, [1], version)
    await add(b.store, [1], version)
    assert on_disk(a.store.data) and on_disk(b.store.data)
    assert (await a.store.delete()).deleted == 1
    assert not on_disk(a.store.data) and not on_disk(b.store.data)
    await until(lambda: not a.store.store._database.read_blocking(kv_changes.newest))


async def test_a_fork_has_the_files_of_its_source_on_each_node(two: tuple[Node, Node]) -> None:
    a, b = two
    version = (await a.store.cache.CommitTurn(kv.turn([1]))).version
    names = [await add(each.store, [1], version) for each in two]
    await a.store.fork("eve")
    await until(lambda: not b.store.store._database.read_blocking(kv_changes.newest))
    await a.store.delete()
    for each in two:
        assert len(await found(each.store, names[0])) == 1, "the fork has it"


async def test_a_deletion_waits_for_a_node_that_does_not_follow(
    two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    monkeypatch.setattr("cache_service.rpc.agents.FOLLOWING_SECONDS", 0.5)
    await add(b.store, [1], await a.store.commit([1]))
    again = b.cut_off()
    assert "not all nodes" in await fails(a.store.delete(), "UNAVAILABLE")
    again()
    monkeypatch.setattr("cache_service.rpc.agents.FOLLOWING_SECONDS", 30.0)
    status = None
    try:
        await a.store.delete()
    except grpc.aio.AioRpcError as error:
        status = error.code()
    assert status in (None, grpc.StatusCode.NOT_FOUND), "it had followed before it was asked again"
    assert not on_disk(b.store.data)


async def test_who_was_cut_off_follows_anew_before_it_is_ready(
    two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is over: nobody waits for it, and what it has missed is forgotten."""
    a, b = two
    monkeypatch.setattr(nodes, "LEASE", 10**8)
    monkeypatch.setattr(nodes, "_UNSURE", 0)
    monkeypatch.setattr(nodes, "_LATE", 0)
    await add(b.store, [1], await a.store.commit([1]))
    await add(b.store, [2], None)
    bad = await add(b.store, [3], None)
    await b.store.cache.QuarantineBlock(pb.QuarantineBlockRequest(namespace="default", name=bad, reason="digest"))
    again = b.cut_off()
    membership = b.membership
    await until(lambda: a_sees_none(a))
    await a.store.delete()
    await until(lambda: not a.store.store._database.read_blocking(kv_changes.newest))
    assert on_disk(b.store.data), "it knows nothing of the deletion"
    beats = membership.beats
    again()
    await until(lambda: membership.beats >= beats + 2 and not membership.problem())
    assert not on_disk(b.store.data)


def a_sees_none(a: Node) -> bool:
    a.membership.wake()
    return a.membership.live("b") is None


async def test_heartbeats_do_not_wait_for_files(two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that follow for longer than the lease cost no lease, and are followed in the end."""
    a, b = two
    monkeypatch.setattr("cache_service.cluster.membership.BEAT_SECONDS", 0.1)
    membership, gate = b.membership, threading.Event()
    await add(b.store, [1], await a.store.commit([1]))
    b.store.store._blocks._thread.submit(gate.wait, 30)
    deleting = asyncio.create_task(a.store.delete())
    beats = membership.beats
    await until(lambda: membership.beats > beats + 10)
    assert on_disk(b.store.data) and not deleting.done() and not membership.problem()
    gate.set()
    await deleting
    assert not on_disk(b.store.data)


async def test_heartbeats_go_on_whatever_a_wait_for_others_raises(
    two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_service.cluster.membership.BEAT_SECONDS", 0.1)
    membership = two[0].membership

    def broken(_: float) -> None:
        raise ValueError("filedescriptor out of range in select()")

    monkeypatch.setattr(membership, "_wait", broken)
    membership.wake()
    beats = membership.beats
    await until(lambda: membership.beats > beats + 3)
    assert not membership.problem()


async def test_upkeep_goes_on_whatever_the_server_says(
    two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table is away for a moment, as while an operator brings a backup back."""
    monkeypatch.setattr("cache_service.store.UPKEEP_SECONDS", 0.05)
    store, _ = (each.store.store for each in two)
    rename(store, "agents", "away")
    keeping = asyncio.create_task(store.keep_up())
    async with asyncio.timeout(30):
        while [record.getMessage() for record in caplog.records].count("upkeep failed") < 2:
            assert not keeping.done()
            await asyncio.sleep(0.02)
    rename(store, "away", "agents")
    keeping.cancel()
    await two[0].store.cache.CommitTurn(kv.turn([1]))


def rename(store: Store, table: str, name: str) -> None:
    store._database.write_blocking(lambda c: c.execute(f"ALTER TABLE {table} RENAME TO {name}") and None)


async def test_hours_without_the_database_are_no_idle_time(
    two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = two
    clock = a.store.store.clock
    again = a.cut_off()
    now, awake = clock.now(), time.clock_gettime_ns(BOOT_CLOCK)
    monkeypatch.setattr("cache_service.cluster.clock.time.clock_gettime_ns", lambda _: awake + 8 * 3600 * 10**9)
    later = clock.now()
    assert later.wall - now.wall > 7 * 3600 * 10**9 and later.used - now.used < 60 * 10**9
    monkeypatch.undo()
    again()


async def test_a_name_is_one_nodes(two: tuple[Node, Node], data: Path, cluster: Settings) -> None:
    a, _ = two
    with pytest.raises(DirectoryUnusable, match="another node is there as 'a'"):
        async with running(data.with_name("c"), cluster=replace(cluster, node="a")):
            pass
    assert (await a.sync())["a"].epoch > 0


async def test_a_node_that_was_killed_goes_on_at_once(
    data: Path, cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is there still, and its directory tells that it is the same."""
    async with node(data, cluster, "a") as first:
        epoch = (await first.sync())["a"].epoch
        monkeypatch.setattr(nodes, "leave", lambda *_: None)
    async with node(data, cluster, "a") as second:
        assert (await second.sync())["a"].epoch > epoch


async def test_a_single_machines_directory_is_refused(data: Path, cluster: Settings) -> None:
    async with running(data):
        pass
    with pytest.raises(DirectoryUnusable, match="has ledgers of its own"):
        async with running(data, cluster=cluster):
            pass


async def test_time_takes_no_part_in_steps_of_the_servers_clock(cluster: Settings, data: Path) -> None:
    async with node(data, cluster, "a") as a:
        database, key = a.store.store._database, AgentKey.from_proto(kv.key())
        now = a.store.store.clock.time()
        database.write_blocking(lambda c: c.execute("UPDATE clock SET read = read - ?", (10**9 * 86_400,)) and None)
        again = a.cut_off()
        again()
        await until(lambda: a.store.store.clock.time() > now)
        assert a.store.store.clock.time() < now + 10**9 * 120, "a day is no minute"
        assert database.read_blocking(nodes.locate, key) == ("", "")


SECOND = 10**9
HOUR = 3600 * SECOND


@pytest.mark.parametrize("late", [SECOND // 100, 7 * SECOND])
def test_a_slow_heartbeat_does_not_take_time_back(late: int) -> None:
    clock = SharedClock()
    clock.set(used=100 * SECOND, wall=HOUR)
    before = clock.now()
    clock.set(used=100 * SECOND - late, wall=HOUR - late)
    after = clock.now()
    assert before.wall <= after.wall < HOUR + SECOND and before.used <= after.used < 101 * SECOND


def test_time_goes_on_once_it_is_past_what_was_told() -> None:
    clock = SharedClock()
    clock.set(used=100 * SECOND, wall=HOUR)
    clock.now()
    clock.set(used=102 * SECOND, wall=HOUR + 2 * SECOND)
    assert clock.time() >= 102 * SECOND
    assert clock.now().wall >= HOUR + 2 * SECOND


def test_the_shown_time_follows_a_clock_that_is_set_back_and_idle_time_does_not() -> None:
    clock = SharedClock()
    clock.set(used=100 * SECOND, wall=10 * HOUR)
    clock.now()
    clock.set(used=50 * SECOND, wall=9 * HOUR)
    assert clock.now().wall < 9 * HOUR + SECOND
    assert clock.time() >= 100 * SECOND
