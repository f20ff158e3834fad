import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.errors import InvalidArgument
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.pool.hot import HotAgents, HotState
from inference_service.pool.kv import KVPool, Space, Table
from inference_service.servicers.agents import AgentServicer
from inference_service.turns.locks import AgentLocks
from tests.inference_service.loop import settle

A = AgentKey("ns", "a", "tiny")


class Store:
    """The store's half, as far as these RPCs ask it."""

    def __init__(self) -> None:
        self.agents = self
        self.stored: list[agent_pb2.Agent] = []
        self.asked: list[Any] = []
        self.error: Exception | None = None

    async def call(self, rpc: Any, request: Any) -> Any:
        return await rpc(request)

    async def GetAgent(self, request: agent_pb2.GetAgentRequest) -> agent_pb2.GetAgentResponse:
        if self.error is not None:
            raise self.error
        return agent_pb2.GetAgentResponse(agent=self.stored[0])

    async def ListAgents(self, request: agent_pb2.ListAgentsRequest) -> agent_pb2.ListAgentsResponse:
        self.asked.append(request)
        return agent_pb2.ListAgentsResponse(agents=self.stored, next_page_token="more")

    async def DeleteAgent(self, request: agent_pb2.DeleteAgentRequest) -> agent_pb2.DeleteAgentResponse:
        self.asked.append(request)
        return agent_pb2.DeleteAgentResponse()

    async def ForkAgent(self, request: agent_pb2.ForkAgentRequest) -> agent_pb2.ForkAgentResponse:
        self.asked.append(request)
        return agent_pb2.ForkAgentResponse(agent=agent(A._replace(agent_id=request.new_agent_id), version=("child", 1)))

    async def TrimAgent(self, request: agent_pb2.TrimAgentRequest) -> agent_pb2.TrimAgentResponse:
        self.asked.append(request)
        return agent_pb2.TrimAgentResponse(agent=self.stored[0])

    async def PinAgent(self, request: agent_pb2.PinAgentRequest) -> agent_pb2.PinAgentResponse:
        self.asked.append(request)
        return agent_pb2.PinAgentResponse(agent=self.stored[0])

    async def EvictAgent(self, request: agent_pb2.EvictAgentRequest) -> agent_pb2.EvictAgentResponse:
        self.asked.append(request)
        return agent_pb2.EvictAgentResponse(freed_bytes=1000)

    async def RestoreSnapshot(self, request: agent_pb2.RestoreSnapshotRequest) -> agent_pb2.RestoreSnapshotResponse:
        self.asked.append(request)
        return agent_pb2.RestoreSnapshotResponse(agent=self.stored[0])


class Persister:
    """Says which agents somebody waited for, or wanted nothing more to be written of."""

    def __init__(self) -> None:
        self.settled: list[AgentKey] = []
        self.forgotten: list[AgentKey] = []

    async def forget(self, key: AgentKey) -> None:
        self.forgotten.append(key)

    async def wait_written(self, key: AgentKey) -> None:
        self.settled.append(key)


class World:
    def __init__(self, *agents: agent_pb2.Agent) -> None:
        self.store, self.locks = Store(), AgentLocks()
        self.pool = KVPool(Space(4))
        self.hot = HotAgents(self.pool, TurnHints())
        self.store.stored = list(agents)
        self.model: Any = SimpleNamespace(
            context_length=100, memory=SimpleNamespace(hot=self.hot, pool=self.pool, evict=self.evict)
        )
        self.models = SimpleNamespace(loaded=lambda model_id: None if model_id == "on disk" else self.model)
        self.persister = Persister()
        self.servicer = self.serving(self.store)

    def serving(self, store: Store) -> AgentServicer:
        return AgentServicer(
            cast(Any, store),
            cast(Any, self.models),
            cast(Any, None),
            cast(Any, None),
            cast(Any, self.persister),
            cast(Any, None),
            self.locks,
            TurnHints(),
            cast(Any, None),
        )

    def evict(self, key: AgentKey) -> int:
        """As ModelMemory does; a block has 7 bytes."""
        free = self.pool.full.free
        self.hot.drop(key)
        return 7 * (self.pool.full.free - free)

    def make_hot(self, key: AgentKey, tokens: int = 3) -> None:
        blocks = tuple(self.pool.full.allocate(-(-tokens // 256)))
        self.hot.put(key, HotState(Version("u", 1), ledger(tokens), Table(tokens, blocks), {256: 64, tokens: 64}))


def ledger(tokens: int) -> Ledger:
    return Ledger(tuple(range(tokens)))


def agent(key: AgentKey = A, tokens: int = 40, version: tuple[str, int] = ("u", 1)) -> agent_pb2.Agent:
    made = types_pb2.AgentVersion(uid=version[0], version=version[1])
    return agent_pb2.Agent(key=key.to_proto(), version=made, tokens=tokens, tier=types_pb2.TIER_WARM)


async def test_get_says_what_memory_knows() -> None:
    world = World(agent())
    request = agent_pb2.GetAgentRequest(key=A.to_proto())
    cold = (await world.servicer.GetAgent(request, None)).agent
    assert (cold.tier, cold.context_remaining) == (types_pb2.TIER_WARM, 60)
    world.make_hot(A)
    assert (await world.servicer.GetAgent(request, None)).agent.tier == types_pb2.TIER_HOT


async def test_context_of_a_model_that_is_not_loaded_is_not_said() -> None:
    world = World(agent(A._replace(model_id="on disk")))
    found = (await world.servicer.GetAgent(agent_pb2.GetAgentRequest(key=A.to_proto()), None)).agent
    assert found.context_remaining == 0
    world.model = None
    world.store.stored = [agent()]
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
        await settle()
        assert world.store.asked == [], "the turn runs"
        world.make_hot(A)
    await deleting
    assert world.store.asked == [request]
    assert A not in world.hot
    assert world.persister.forgotten == [A], "or what is erased would be written once more"


@pytest.mark.parametrize(
    ("tier", "forgotten"), [(types_pb2.TIER_HOT, []), (types_pb2.TIER_WARM, [A]), (types_pb2.TIER_REMOTE, [A])]
)
async def test_an_eviction_frees_the_pool_and_only_from_disk_what_waits_to_be_written(
    tier: types_pb2.Tier.ValueType, forgotten: list[AgentKey]
) -> None:
    world = World(agent())
    world.make_hot(A)
    response = await world.servicer.EvictAgent(agent_pb2.EvictAgentRequest(key=A.to_proto(), tier=tier), None)
    assert (response.freed_bytes, A in world.hot) == (1000 + 7, False)
    assert world.persister.forgotten == forgotten
    assert world.persister.settled == ([] if forgotten else [A]), "what is not written yet would stay in the pool"


async def test_delete_on_all_models() -> None:
    other = A._replace(model_id="other")
    bystander = A._replace(agent_id="b")
    world = World(agent(), agent(other))
    for key in (A, other, bystander):
        world.make_hot(key)
    request = agent_pb2.DeleteAgentRequest(key=types_pb2.AgentKey(namespace="ns", agent_id="a"))
    async with world.locks.hold(other):
        deleting = asyncio.create_task(world.servicer.DeleteAgent(request, None))
        await settle()
        assert request not in world.store.asked
    await deleting
    listed, deleted = world.store.asked
    assert (listed.namespace, listed.agent_id) == ("ns", "a")
    assert deleted == request
    assert A not in world.hot and other not in world.hot
    assert bystander in world.hot


async def test_a_fork_waits_for_both() -> None:
    world, child = World(), A._replace(agent_id="b")
    request = agent_pb2.ForkAgentRequest(key=A.to_proto(), new_agent_id="b")
    for held in (A, child):
        world.store.asked.clear()
        async with world.locks.hold(held):
            forking = asyncio.create_task(world.servicer.ForkAgent(request, None))
            await settle()
            assert world.store.asked == []
        await forking
    assert world.persister.settled == [A, A]


async def test_forks_of_each_other_do_not_lock_each_other() -> None:
    world = World()
    forks = [
        world.servicer.ForkAgent(
            agent_pb2.ForkAgentRequest(key=A._replace(agent_id=a).to_proto(), new_agent_id=b), None
        )
        for a, b in (("a", "b"), ("b", "a"), ("a", "a"))
    ]
    await asyncio.wait_for(asyncio.gather(*forks), 10)


@pytest.mark.parametrize(("rpc", "settled"), [("TrimAgent", [A]), ("RestoreSnapshot", [A]), ("PinAgent", [])])
async def test_changes_wait_for_the_running_turn_and_moves_for_its_kv(rpc: str, settled: list[AgentKey]) -> None:
    world = World(agent(version=("u", 2)))
    request = getattr(agent_pb2, f"{rpc}Request")(key=A.to_proto())
    async with world.locks.hold(A):
        changing = asyncio.create_task(getattr(world.servicer, rpc)(request, None))
        await settle()
        assert world.store.asked == [] and world.persister.settled == [], "the turn runs"
    assert (await changing).agent.context_remaining == 60
    assert world.persister.settled == settled
