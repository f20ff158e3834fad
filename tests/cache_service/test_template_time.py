"""The moment that an agent's chat template sees belongs to its ledger: every state keeps its own."""

from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service.ledger.test_branches import fork, restore, snapshot, trim

from . import kv
from .conftest import Running

MONDAY, TUESDAY = "2026-03-02T09:30:00+01:00", "2026-03-03T09:30:00+01:00"


async def commit(store: Running, tokens: list[int], time: str) -> None:
    opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))
    request = kv.turn(tokens, opened.version, len(opened.ledger.token_ids))
    request.template_time = time
    await store.cache.CommitTurn(request)


async def time(store: Running, agent: str = "ada") -> str:
    ledger = (await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(agent)))).ledger
    shown = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key(agent)))).agent.template_time
    assert ledger.template_time == shown
    return str(shown)


async def test_each_state_has_its_own(store: Running) -> None:
    await commit(store, [1, 2], MONDAY)
    await snapshot(store, "monday")
    await commit(store, [3, 4], TUESDAY)
    assert await time(store) == TUESDAY
    assert (await fork(store, "eve")).template_time == TUESDAY
    assert (await fork(store, "earlier", at_version=1)).template_time == MONDAY
    assert (await restore(store, "monday")).template_time == MONDAY
    assert (await restore(store, "auto-2")).template_time == TUESDAY
    assert (await trim(store, 3)).template_time == TUESDAY
    assert (await trim(store, 2)).template_time == MONDAY
    assert (await trim(store, 0)).template_time == MONDAY
    assert [await time(store, agent) for agent in ("eve", "earlier", "ada")] == [TUESDAY, MONDAY, MONDAY]


async def test_an_imported_agent_has_the_files(store: Running) -> None:
    await commit(store, [1, 2], MONDAY)
    ledger = (await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))).ledger
    await store.cache.CreateAgent(pb.CreateAgentRequest(key=kv.key("bob"), ledger=ledger))
    assert await time(store, "bob") == MONDAY
