import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.errors import InvalidArgument, NotFound
from agentmem.keys import AgentKey
from agentmem.v1 import agent_pb2, types_pb2
from inference_service.memory.ledger import Ledger, Version
from inference_service.pool.hot import HotAgents, HotState
from inference_service.pool.kv import KVPool, Space, Table
from inference_service.servicers.servicer_agents import AgentServicer
from inference_service.turns.locks import AgentLocks

A = AgentKey("ns", "a", "tiny")


class Store:
    """The store's half, as far as these RPCs ask it."""

    def __init__(self) -> None:
        self.agents: list[agent_pb2.Agent] = []
        self.asked: list[Any] = []
        self.error: Exception | None = None

    async def get_agent(self, request: agent_pb2.GetAgentRequest) -> agent_pb2.GetAgentResponse:
        if self.error is not None:
            raise self.error
        return agent_pb2.GetAgentResponse(agent=self.agents[0])

    async def list_agents(self, request: agent_pb2.ListAgentsRequest) -> agent_pb2.ListAgentsResponse:
        self.asked.append(request)
        return agent_pb2.ListAgentsResponse(agents=self.agents, next_page_token="more")

    async def delete_agent(self, request: agent_pb2.DeleteAgentRequest) -> agent_pb2.DeleteAgentResponse:
        self.asked.append(request)
        return agent_pb2.DeleteAgentResponse()


class World:
    def __init__(self, *agents: agent_pb2.Agent) -> None:
        self.store, self.locks = Store(), AgentLocks()
        self.pool = KVPool(Space(4))
        self.hot = HotAgents(self.pool)
        self.store.agents = list(agents)
        self.models = SimpleNamespace(
            loaded=SimpleNamespace(model_id="tiny", context_length=100, memory=SimpleNamespace(hot=self.hot))
        )
        self.servicer = AgentServicer(cast(Any, self.store), cast(Any, self.models), cast(Any, None), self.locks)

    def make_hot(self, key: AgentKey) -> None:
        self.hot.put(key, HotState(Version("u", 1), Ledger(), Table(3, tuple(self.pool.full.allocate(1)))))


def agent(key: AgentKey = A, tokens: int = 40) -> agent_pb2.Agent:
    return agent_pb2.Agent(key=key.to_proto(), tokens=tokens, tier=types_pb2.TIER_WARM)


async def test_get_says_what_memory_knows() -> None:
    world = World(agent())
    request = agent_pb2.GetAgentRequest(key=A.to_proto())
    cold = (await world.servicer.GetAgent(request, None)).agent
    assert (cold.tier, cold.context_remaining) == (types_pb2.TIER_WARM, 60)
    world.make_hot(A)
    assert (await world.servicer.GetAgent(request, None)).agent.tier == types_pb2.TIER_HOT


async def test_context_of_a_model_that_is_not_loaded_is_not_said() -> None:
    world = World(agent(A._replace(model_id="other")))
    found = (await world.servicer.GetAgent(agent_pb2.GetAgentRequest(key=A.to_proto()), None)).agent
    assert found.context_remaining == 0
    world.models.loaded = None
    world.store.agents = [agent()]
    assert (
        await world.servicer.GetAgent(agent_pb2.GetAgentRequest(key=A.to_proto()), None)
    ).agent.context_remaining == 0


async def test_context_that_is_over_full_has_nothing_left() -> None:
    world = World(agent(tokens=101))
    assert (
        await world.servicer.GetAgent(agent_pb2.GetAgentRequest(key=A.to_proto()), None)
    ).agent.context_remaining == 0


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (types_pb2.AgentKey(agent_id="a", model_id="m"), "key.namespace"),
        (types_pb2.AgentKey(namespace="n", model_id="m"), "key.agent_id"),
        (types_pb2.AgentKey(namespace="n", agent_id="a"), "key.model_id"),
    ],
)
async def test_bad_keys(key: types_pb2.AgentKey, field: str) -> None:
    world = World(agent())
    with pytest.raises(InvalidArgument) as caught:
        await world.servicer.GetAgent(agent_pb2.GetAgentRequest(key=key), None)
    assert caught.value.field == field
    if field != "key.model_id":
        with pytest.raises(InvalidArgument) as caught:
            await world.servicer.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key), None)
        assert caught.value.field == field
    assert world.store.asked == []


async def test_unknown_agent() -> None:
    world = World()
    world.store.error = NotFound("agent", "a")
    with pytest.raises(NotFound):
        await world.servicer.GetAgent(agent_pb2.GetAgentRequest(key=A.to_proto()), None)


async def test_list_says_what_memory_knows_of_each() -> None:
    b = A._replace(agent_id="b")
    world = World(agent(), agent(b, tokens=1))
    world.make_hot(b)
    response = await world.servicer.ListAgents(agent_pb2.ListAgentsRequest(namespace="ns"), None)
    assert [a.tier for a in response.agents] == [types_pb2.TIER_WARM, types_pb2.TIER_HOT]
    assert [a.context_remaining for a in response.agents] == [60, 99]
    assert response.next_page_token == "more"


async def test_delete_waits_for_the_running_turn_and_drops_what_is_hot() -> None:
    world = World(agent())
    request = agent_pb2.DeleteAgentRequest(key=A.to_proto())
    async with world.locks.hold(A):
        deleting = asyncio.create_task(world.servicer.DeleteAgent(request, None))
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.store.asked == [], "the turn runs"
        world.make_hot(A)
    await deleting
    assert world.store.asked == [request]
    assert A not in world.hot


async def test_delete_on_all_models() -> None:
    other = A._replace(model_id="other")
    bystander = A._replace(agent_id="b")
    world = World(agent(), agent(other))
    for key in (A, other, bystander):
        world.make_hot(key)
    request = agent_pb2.DeleteAgentRequest(key=types_pb2.AgentKey(namespace="ns", agent_id="a"))
    async with world.locks.hold(other):
        deleting = asyncio.create_task(world.servicer.DeleteAgent(request, None))
        for _ in range(10):
            await asyncio.sleep(0)
        assert request not in world.store.asked
    await deleting
    listed, deleted = world.store.asked
    assert (listed.namespace, listed.agent_id) == ("ns", "a")
    assert deleted == request
    assert A not in world.hot and other not in world.hot
    assert bystander in world.hot


async def test_two_deletions_on_all_models_do_not_lock_each_other() -> None:
    """Each is told the models in another order, and both wait for a turn on one of them."""
    other = A._replace(model_id="other")
    world = World(agent(), agent(other))
    backwards = World(agent(other), agent())
    backwards.servicer = AgentServicer(
        cast(Any, backwards.store), cast(Any, world.models), cast(Any, None), world.locks
    )
    request = agent_pb2.DeleteAgentRequest(key=types_pb2.AgentKey(namespace="ns", agent_id="a"))
    deletions = []
    async with world.locks.hold(other):
        for each in (backwards, world):
            deletions.append(asyncio.create_task(each.servicer.DeleteAgent(request, None)))
            for _ in range(10):
                await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert all(deletion.done() for deletion in deletions)
