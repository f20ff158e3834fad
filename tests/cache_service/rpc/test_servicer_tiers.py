"""Pins, times to live and evictions over the socket."""

import time

import pytest
from google.protobuf import duration_pb2

from agentmem.v1 import agent_pb2, types_pb2
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, wrong_field
from tests.cache_service.tiers.test_blocks import on_disk
from tests.cache_service.tiers.test_warm import evicted, evictions, speak, there

SECOND = 10**9


async def set_ttl(store: Running, agent: str, **times: float) -> agent_pb2.Agent:
    durations = {field: duration_pb2.Duration(seconds=int(value)) for field, value in times.items()}
    request = agent_pb2.SetAgentTtlRequest(key=kv.key(agent), **durations)  # type: ignore[arg-type]
    return (await store.agents.SetAgentTtl(request)).agent


async def test_an_idle_agents_kv_expires_and_its_ledger_stays(store: Running) -> None:
    await speak(store, "a", [0, 1])
    await speak(store, "b", [2])
    agent = await set_ttl(store, "a", ttl=60)
    assert (agent.ttl.seconds, agent.HasField("delete_after")) == (60, False)
    used = time.time_ns()
    await store.store.upkeep(used + 50 * SECOND)
    assert await there(store, 0, 1, 2) == [0, 1, 2]
    await store.store.upkeep(used + 61 * SECOND)
    assert (await there(store, 0, 1, 2), await evicted(store, "a")) == ([2], True)
    assert evictions(store, "ttl") == 1
    assert (await store.agent("a")).tokens == 1


@pytest.mark.slow
async def test_a_use_puts_the_end_off(store: Running) -> None:
    await speak(store, "a", [0])
    await set_ttl(store, "a", ttl=1)
    began = time.time_ns()
    while time.time_ns() < began + SECOND:
        await store.open("a")
    await store.store.upkeep(began + SECOND + SECOND // 10)
    assert await there(store, 0) == [0]


async def test_a_pin_does_not_keep_what_the_agents_own_ttl_ends(store: Running) -> None:
    await speak(store, "a", [0])
    await store.agents.PinAgent(agent_pb2.PinAgentRequest(key=kv.key("a"), pinned=True))
    await set_ttl(store, "a", ttl=1)
    await store.store.upkeep(time.time_ns() + 2 * SECOND)
    assert await there(store, 0) == []


async def test_an_agent_ends_with_its_text_and_times_are_replaced(store: Running) -> None:
    await speak(store, "a", [0])
    await set_ttl(store, "a", ttl=1, delete_after=1)
    assert not (await set_ttl(store, "a")).HasField("ttl"), "an absent one is cleared"
    await store.store.upkeep(time.time_ns() + 9 * SECOND)
    assert (await store.agent("a")).tokens == 1
    await set_ttl(store, "a", delete_after=1)
    await store.store.upkeep(time.time_ns() + 9 * SECOND)
    await fails(store.agent("a"), "NOT_FOUND")
    assert on_disk(store.data) == []


@pytest.mark.parametrize(
    "duration",
    [duration_pb2.Duration(), duration_pb2.Duration(seconds=-1), duration_pb2.Duration(seconds=101 * 366 * 86400)],
)
async def test_times_that_cannot_be_are_refused(store: Running, duration: duration_pb2.Duration) -> None:
    await speak(store, "a", [0])
    for field in ("ttl", "delete_after"):
        assert (
            await wrong_field(
                store.agents.SetAgentTtl(agent_pb2.SetAgentTtlRequest(key=kv.key("a"), **{field: duration}))
            )
            == field
        )  # type: ignore[arg-type]


async def test_the_unknown_is_not_found_and_nonsense_refused(store: Running) -> None:
    calls = (
        lambda: store.agents.PinAgent(agent_pb2.PinAgentRequest(key=kv.key("x"), pinned=True)),
        lambda: set_ttl(store, "x", ttl=1),
        lambda: store.evict("x", types_pb2.TIER_HOT),
        lambda: store.evict("x", types_pb2.TIER_WARM),
    )
    for call in calls:
        await fails(call(), "NOT_FOUND")
    for tier in (types_pb2.TIER_NONE, 77):
        assert await wrong_field(store.evict("x", tier)) == "tier"  # type: ignore[arg-type]
