"""KV within its namespace's quota: the namespace's own idle agents make room, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmem.errors import ResourceExhausted
from agentmem.v1 import agent_pb2
from cache_service.connection import Connection
from cache_service.tiers import quotas
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.quotas import Quotas, Usage
from tests.cache_service.tiers import test_blocks
from tests.cache_service.tiers.test_blocks import on_disk
from tests.cache_service.tiers.test_warm import FILE, evictions, hold, pin, speak, there

from . import kv
from .conftest import Running, fails, refused, running

LEDGER = 9
"""Bytes of a turn of one token of one digit, and no record."""
QUOTA = 6 * FILE + 10 * LEDGER + 200  # headers differ by a few bytes


@pytest.fixture
async def store(data: Path) -> AsyncIterator[Running]:
    async with running(data, DiskLimits(1000 * FILE, 0), Quotas(QUOTA, {"rich": 100 * FILE})) as store:
        yield store


def taken(store: Running, namespace: str = "default") -> Usage:
    kv_bytes = store.store._rows.read_blocking(quotas.kv_bytes, namespace)
    return Usage(kv_bytes, store.store._database.read_blocking(quotas.ledger_bytes, namespace))


async def test_a_namespaces_idle_agents_make_room_and_no_others(store: Running) -> None:
    await speak(store, "z", [0, 1, 2, 3, 4, 5], namespace="other")
    await speak(store, "a", [0, 1])
    await speak(store, "b", [2, 3])
    await store.open("a")  # a is used, so b is the idlest
    await speak(store, "c", [4, 5, 6])
    assert await there(store, *range(7)) == [0, 1, 4, 5, 6]
    assert await there(store, *range(6), namespace="other") == [0, 1, 2, 3, 4, 5], "z is idle longest of all"
    assert (evictions(store, "quota"), evictions(store, "capacity")) == (1, 0)
    size = sum((store.data / path).stat().st_size for path in on_disk(store.data))
    assert taken(store).kv + taken(store, "other").kv == size
    assert taken(store).ledger == 3 * LEDGER


async def test_a_namespace_may_have_a_quota_of_its_own(store: Running) -> None:
    for number in range(5):
        await speak(store, f"a{number}", range(3 * number, 3 * number + 3), namespace="rich")
    assert await there(store, *range(15), namespace="rich") == list(range(15))


async def test_pinned_agents_and_the_one_that_speaks_stay(store: Running) -> None:
    await speak(store, "a", [0, 1])
    await pin(store, "a")
    await speak(store, "b", [2, 3])
    version = await speak(store, "c", [4, 5, 6, 7])
    assert await there(store, *range(8)) == [0, 1, 4, 5, 6, 7]
    error = await refused(speak(store, "c", [4, 5, 6, 7, 8], version))
    assert isinstance(error, ResourceExhausted) and error.retry_after
    told = error.message
    assert "the quota of namespace 'default'" in told and "--namespace-bytes" in told and "its KV is not" in told
    assert await there(store, *range(9)) == [0, 1, 4, 5, 6, 7], "nothing of it was kept, and nobody went for nothing"
    opened = await store.open("c")
    assert opened.version.version == 2, "the turn was"
    await pin(store, "a", pinned=False)
    await hold(store, "c", [4, 5, 6, 7, 8], opened.version)
    assert await there(store, *range(9)) == [4, 5, 6, 7, 8]


async def test_what_serves_nobody_in_the_namespace_goes_first(store: Running) -> None:
    await speak(store, "a", [0, 1])
    for number, namespace in ((90, "default"), (91, "other")):
        protected = kv.header([number, 0], namespace)
        await test_blocks.hold(store, [protected], key=kv.key("", namespace))
    await speak(store, "b", [2, 3])
    await speak(store, "c", [4, 5])
    assert await there(store, 90) == [] and await there(store, 91, namespace="other") == [91]
    assert await there(store, *range(6)) == [0, 1, 2, 3, 4, 5], "and so all agents stay"


async def test_a_state_that_is_too_large_by_itself_evicts_nobody(store: Running) -> None:
    await speak(store, "a", [0, 1])
    await fails(speak(store, "b", range(10, 17)), "RESOURCE_EXHAUSTED")
    assert await there(store, 0, 1, *range(10, 17)) == [0, 1]
    assert evictions(store, "quota") == 0


async def test_a_quota_that_was_lowered_holds_after_the_first_upkeep(data: Path) -> None:
    async with running(data) as store:
        for namespace in ("default", "other"):
            await speak(store, "a", [0, 1, 2], namespace=namespace)
            await speak(store, "b", [3, 4], namespace=namespace)
    async with running(data, quotas=Quotas(None, {"default": 2 * FILE + 100})) as store:
        await store.store.upkeep(0)
        assert await there(store, *range(5)) == [3, 4]
        assert await there(store, *range(5), namespace="other") == [0, 1, 2, 3, 4]
    async with running(data, quotas=Quotas(FILE)) as store:
        await store.store.upkeep(0)
        assert on_disk(data) == []
        agents = await store.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default"))
        assert [agent.tokens for agent in agents.agents] == [1, 1]


async def test_what_a_quota_refuses_costs_nobody_anything(data: Path) -> None:
    limits = DiskLimits(10 * FILE, 0, 1.0, 0.5)
    async with running(data, limits, Quotas(None, {"small": 3 * FILE})) as store:
        await speak(store, "a", range(4), namespace="other")
        await speak(store, "b", range(4, 8), namespace="other")
        assert "quota" in await fails(speak(store, "c", range(4), namespace="small"), "RESOURCE_EXHAUSTED")
        assert await there(store, *range(8), namespace="other") == list(range(8)), "though there were too many files"
        assert (evictions(store, "quota"), evictions(store, "capacity")) == (0, 0)


async def test_ledgers_are_counted_only_where_a_quota_may_need_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster they are those of all nodes, and the upkeep comes every ten seconds on each."""
    asked, ask = [], quotas.all_ledger_bytes

    def counted(connection: Connection) -> dict[str, int]:
        asked.append(connection)
        return ask(connection)

    async with running(data, DiskLimits(1000 * FILE, 0), Quotas(None, {"rich": 100 * FILE})) as store:
        monkeypatch.setattr(quotas, "all_ledger_bytes", counted)
        await speak(store, "ada", [1])
        await store.store.upkeep(store.store.clock.time())
        assert asked == []
        await speak(store, "ada", [1], namespace="rich")
        await store.store.upkeep(store.store.clock.time())
        assert len(asked) == 1
