"""The moment that an agent's chat template sees belongs to its ledger: every state keeps its own."""

from agentmem.v1 import cache_store_pb2 as pb

from . import kv
from .conftest import Running

MONDAY, TUESDAY = "2026-03-02T09:30:00+01:00", "2026-03-03T09:30:00+01:00"


async def time(store: Running, agent: str = "ada") -> str:
    ledger = (await store.open(agent)).ledger
    shown = (await store.agent(agent)).template_time
    assert ledger.template_time == shown
    return str(shown)


async def test_each_state_has_its_own(store: Running) -> None:
    await store.commit([1, 2], template_time=MONDAY)
    await store.snapshot("monday")
    await store.commit([3, 4], template_time=TUESDAY)
    assert await time(store) == TUESDAY
    assert (await store.fork("eve")).template_time == TUESDAY
    assert (await store.fork("earlier", at_version=1)).template_time == MONDAY
    assert (await store.restore("monday")).template_time == MONDAY
    assert (await store.restore("auto-2")).template_time == TUESDAY
    assert (await store.trim(3)).template_time == TUESDAY
    assert (await store.trim(2)).template_time == MONDAY
    assert (await store.trim(0)).template_time == MONDAY
    assert [await time(store, agent) for agent in ("eve", "earlier", "ada")] == [TUESDAY, MONDAY, MONDAY]


async def test_an_imported_agent_has_the_files(store: Running) -> None:
    await store.commit([1, 2], template_time=MONDAY)
    ledger = (await store.open()).ledger
    await store.cache.CreateAgent(pb.CreateAgentRequest(key=kv.key("bob"), ledger=ledger))
    assert await time(store, "bob") == MONDAY
