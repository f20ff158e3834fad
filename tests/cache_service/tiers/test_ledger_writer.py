"""Ledgers within their namespace's quota: KV makes room for them, and what has no room even so changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmem.errors import ResourceExhausted
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.quotas import RETRY_SECONDS, Quotas
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, refused, running
from tests.cache_service.ledger.test_workflow_records import put
from tests.cache_service.test_warm_quotas import LEDGER, taken
from tests.cache_service.tiers.test_warm import FILE, evictions, hold, pin, speak, there

QUOTA = 3 * FILE


@pytest.fixture
async def store(data: Path) -> AsyncIterator[Running]:
    """A store whose namespaces have room for two files and a few short turns."""
    async with running(data, DiskLimits(1000 * FILE, 0), Quotas(QUOTA)) as store:
        yield store


async def say(
    store: Running, agent: str, size: int, base: types_pb2.AgentVersion | None = None, **fields: object
) -> types_pb2.AgentVersion:
    tokens = [1] * (size // LEDGER)
    return (await store.cache.CommitTurn(kv.turn(tokens, base, agent=kv.key(agent), **fields))).version


async def no_room(store: Running, agent: str, size: int, base: types_pb2.AgentVersion | None = None) -> str:
    before = taken(store)
    problem = await refused(say(store, agent, size, base))
    assert isinstance(problem, ResourceExhausted) and problem.retry_after == RETRY_SECONDS
    assert taken(store) == before
    return problem.message


async def settled(store: Running) -> None:
    await asyncio.to_thread(store.store._blocks.make_room("").result)


async def test_a_turn_without_room_changes_nothing_until_somebody_is_deleted(store: Running) -> None:
    first = await say(store, "a", QUOTA // 2)
    await say(store, "b", QUOTA // 3)
    told = await no_room(store, "a", QUOTA // 3, first)
    assert "delete agents or workflow runs, or raise the quota" in told and "'default'" in told
    await no_room(store, "c", QUOTA // 3)
    opened = await store.open("a")
    assert opened.version == first and len(opened.ledger.token_ids) == QUOTA // 2 // LEDGER
    await store.delete(kv.key("b"))
    assert (await say(store, "a", QUOTA // 3, first)).version == 2


async def test_another_namespace_has_room_of_its_own(store: Running) -> None:
    await say(store, "a", QUOTA - LEDGER)
    await no_room(store, "b", 5 * LEDGER)
    turn = kv.turn([1] * 5, agent=kv.key("b", namespace="other"))
    assert (await store.cache.CommitTurn(turn)).version.version == 1


async def test_kv_makes_room_for_a_ledger_after_the_commit(store: Running) -> None:
    await speak(store, "a", [0])
    await speak(store, "b", [1])
    version = await say(store, "c", FILE)
    await settled(store)
    assert await there(store, 0, 1) == [1], "the idlest went"
    assert evictions(store, "quota") == 1
    await say(store, "c", FILE, version)
    await settled(store)
    assert (await there(store, 0, 1), taken(store).kv) == ([], 0)
    assert len((await store.open("b")).ledger.token_ids) == 1


async def test_an_agents_own_kv_makes_room_for_its_ledger(store: Running) -> None:
    version = await speak(store, "a", [0, 1])
    version = await say(store, "a", 2 * FILE, version)
    await settled(store)
    assert await there(store, 0, 1) == []
    await fails(hold(store, "a", [0, 1], version), "RESOURCE_EXHAUSTED")


async def test_pinned_kv_makes_no_room(store: Running) -> None:
    await speak(store, "a", [0, 1])
    await pin(store, "a")
    assert "belong to pinned agents" in await no_room(store, "b", FILE + 100)
    await pin(store, "a", pinned=False)
    await say(store, "b", FILE + 100)


async def test_what_adds_nothing_always_works(store: Running) -> None:
    version = await say(store, "a", QUOTA - 3 * LEDGER, request_id="r")
    key = kv.key("a")
    assert await say(store, "a", QUOTA - 3 * LEDGER, request_id="r") == version, "a replay"
    await store.agents.CreateSnapshot(agent_pb2.CreateSnapshotRequest(key=key, name="s"))
    await store.agents.ForkAgent(agent_pb2.ForkAgentRequest(key=key, new_agent_id="b"))
    before = taken(store)
    await store.agents.TrimAgent(agent_pb2.TrimAgentRequest(key=key, keep_tokens=1))
    assert taken(store) == before, "shared segments count once, and a cut keeps what it leaves"
    await store.agents.RestoreSnapshot(agent_pb2.RestoreSnapshotRequest(key=key, name="s"))
    for name in ("s", "auto-1"):
        await store.agents.DeleteSnapshot(agent_pb2.DeleteSnapshotRequest(key=key, name=name))
    for agent in "ab":
        await store.delete(kv.key(agent))
    assert taken(store).total == 0


async def test_a_quota_that_was_lowered_leaves_what_is_there(data: Path) -> None:
    async with running(data) as store:
        await say(store, "a", 20 * LEDGER)
        version = await say(store, "b", 20 * LEDGER)
    async with running(data, quotas=Quotas(10 * LEDGER)) as store:
        await no_room(store, "b", LEDGER, version)
        await store.trim(1, "b")
        await store.forget("auto-1", "b")
        await store.delete(kv.key("a"))
        opened = await store.open("b")
        assert (await say(store, "b", LEDGER, opened.version)).version == 3


async def test_workflow_records_are_a_namespaces_too(store: Running) -> None:
    await store.cache.PutWorkflowRecord(put("w", payload=b"x" * 100))
    assert taken(store, "n").ledger == 100
    for request in (put("w", 1, b"x" * (QUOTA + 1)), put("v", payload=b"x" * (QUOTA - 99))):
        await fails(store.cache.PutWorkflowRecord(request), "RESOURCE_EXHAUSTED")
    assert (await store.cache.PutWorkflowRecord(put("w", 1, b"y", summary=b"two"))).version == 2
    assert taken(store, "n").ledger == 4
    full = put("v", payload=b"x" * (QUOTA - 4))
    full.record.summary = b"1"
    told = await fails(store.cache.PutWorkflowRecord(full), "RESOURCE_EXHAUSTED")
    assert "delete agents or workflow runs" in told
    await store.cache.DeleteWorkflowRecord(pb.DeleteWorkflowRecordRequest(namespace="n", workflow_id="w", version=2))
    assert taken(store, "n").ledger == 0
    await store.cache.PutWorkflowRecord(full)
