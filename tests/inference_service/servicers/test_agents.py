import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.errors import InvalidArgument, Unavailable
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import NO_VERSION, Ledger, Version
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.pool.hot import HotAgents, HotState
from inference_service.pool.kv import KVPool, Space, Table
from inference_service.servicers.agents import AgentServicer
from inference_service.turns.reserving import AgentLocks

A = AgentKey("ns", "a", "tiny")


class Store:
    """The store's half, as far as these RPCs ask it."""

    def __init__(self) -> None:
        self.agents = self
        self.stored: list[agent_pb2.Agent] = []
        self.asked: list[Any] = []
        self.error: Exception | None = None
        self.version, self.ledger = Version("u", 1), Ledger()
        self.meanwhile: Callable[[], None] = lambda: None

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

    async def open(self, key: AgentKey, known: Version = NO_VERSION, peek: bool = False) -> Any:
        assert peek == (known != NO_VERSION), "to compare versions is no use of the agent"
        self.asked.append(known)
        self.meanwhile()
        return SimpleNamespace(version=self.version, ledger=self.ledger)

    async def ForkAgent(self, request: agent_pb2.ForkAgentRequest) -> agent_pb2.ForkAgentResponse:
        self.asked.append(request)
        self.meanwhile()
        return agent_pb2.ForkAgentResponse(agent=agent(A._replace(agent_id=request.new_agent_id), version=("child", 1)))

    async def TrimAgent(self, request: agent_pb2.TrimAgentRequest) -> agent_pb2.TrimAgentResponse:
        self.asked.append(request)
        return agent_pb2.TrimAgentResponse(agent=self.stored[0])

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
    backwards.servicer = world.serving(backwards.store)
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


async def test_a_fork_waits_for_both_and_shares_what_is_hot() -> None:
    world, child = World(), A._replace(agent_id="b")
    world.make_hot(A)
    request = agent_pb2.ForkAgentRequest(key=A.to_proto(), new_agent_id="b")
    for held in (A, child):
        world.hot.drop(child)
        world.store.asked.clear()
        async with world.locks.hold(held):
            forking = asyncio.create_task(world.servicer.ForkAgent(request, None))
            for _ in range(10):
                await asyncio.sleep(0)
            assert world.store.asked == []
        assert (await forking).agent.tier == types_pb2.TIER_HOT
        parent, shared = world.hot.get(A), world.hot.get(child)
        assert parent is not None and shared is not None
        assert shared.version == Version("child", 1) and (shared.table, shared.ledger) == (parent.table, parent.ledger)
    assert world.persister.settled == [A, A]
    world.pool.check_integrity(world.hot.tables())
    world.hot.drop(A)
    world.pool.check_integrity(world.hot.tables())


async def test_forks_of_each_other_do_not_lock_each_other() -> None:
    world = World()
    forks = [
        world.servicer.ForkAgent(
            agent_pb2.ForkAgentRequest(key=A._replace(agent_id=a).to_proto(), new_agent_id=b), None
        )
        for a, b in (("a", "b"), ("b", "a"), ("a", "a"))
    ]
    await asyncio.wait_for(asyncio.gather(*forks), 10)


async def test_what_another_node_commits_before_the_fork_is_not_taken_for_what_is_hot() -> None:
    """The store forks the agent as it is then, with more in its ledger than the state that is hot here."""
    world = World()
    world.make_hot(A)
    fork = world.store.ForkAgent

    async def commit_and_fork(request: agent_pb2.ForkAgentRequest) -> agent_pb2.ForkAgentResponse:
        world.store.version = Version("u", 2)
        return await fork(request)

    setattr(world.store, "ForkAgent", commit_and_fork)  # noqa: B010 - a method
    await world.servicer.ForkAgent(agent_pb2.ForkAgentRequest(key=A.to_proto(), new_agent_id="b"), None)
    assert A._replace(agent_id="b") not in world.hot
    world.pool.check_integrity(world.hot.tables())


async def test_a_fork_that_was_made_is_answered_though_the_store_falls_silent() -> None:
    world = World()
    world.make_hot(A)

    def silent() -> None:
        if any(isinstance(each, Version) for each in world.store.asked):
            raise Unavailable("the store is away")

    world.store.meanwhile = silent
    response = await world.servicer.ForkAgent(agent_pb2.ForkAgentRequest(key=A.to_proto(), new_agent_id="b"), None)
    assert response.agent.key.agent_id == "b" and A._replace(agent_id="b") not in world.hot
    world.pool.check_integrity(world.hot.tables())


@pytest.mark.parametrize("fields", [{"at_version": 1}, {"keep_tokens": 1}, {}])
async def test_a_fork_of_another_state_than_the_hot_one_is_not_hot(fields: dict[str, int]) -> None:
    world = World()
    world.make_hot(A)
    if not fields:
        world.store.version = Version("u", 2)
    request = agent_pb2.ForkAgentRequest(key=A.to_proto(), new_agent_id="b", **fields)  # type: ignore[arg-type]
    await world.servicer.ForkAgent(request, None)
    assert A in world.hot and A._replace(agent_id="b") not in world.hot
    world.pool.check_integrity(world.hot.tables())


async def test_a_state_that_is_evicted_while_the_store_forks_is_not_shared() -> None:
    world = World()
    world.make_hot(A)
    world.store.meanwhile = lambda: world.hot.drop(A)
    await world.servicer.ForkAgent(agent_pb2.ForkAgentRequest(key=A.to_proto(), new_agent_id="b"), None)
    assert not len(world.hot)
    world.pool.check_integrity([])


async def test_trim_and_restore_drop_what_is_hot_of_another_version() -> None:
    trim = agent_pb2.TrimAgentRequest(key=A.to_proto(), keep_tokens=1)
    restore = agent_pb2.RestoreSnapshotRequest(key=A.to_proto(), name="here")
    world = World(agent())
    for version, stays in ((1, True), (2, False)):
        world.store.stored = [agent(version=("u", version))]
        for change in (
            lambda w: w.servicer.TrimAgent(trim, None),
            lambda w: w.servicer.RestoreSnapshot(restore, None),
        ):
            world.make_hot(A)
            await change(world)
            assert (A in world.hot) == stays
    assert world.persister.settled == [A] * 4
    assert not len(world.hot)
    world.pool.check_integrity([])


@pytest.mark.parametrize(("common", "blocks"), [(600, 2), (512, 2), (300, 1), (256, 1), (255, 0), (0, 0)])
async def test_full_blocks_that_a_trim_keeps_stay_hot(common: int, blocks: int) -> None:
    world = World(agent(version=("u", 2)))
    world.make_hot(A, 700)
    before = world.hot.get(A)
    world.store.version, world.store.ledger = Version("u", 2), ledger(common)
    await world.servicer.TrimAgent(agent_pb2.TrimAgentRequest(key=A.to_proto(), keep_tokens=common), None)
    after = world.hot.get(A)
    assert (after is not None) == bool(blocks)
    if after is not None and before is not None:
        assert (after.version, after.ledger) == (Version("u", 2), ledger(common))
        assert after.table == Table(256 * blocks, before.table.blocks[:blocks]) and after.windows == {256: 64}
    world.pool.check_integrity(world.hot.tables())


async def test_what_is_evicted_or_out_of_reach_while_hot_state_follows_is_dropped() -> None:
    trim = agent_pb2.TrimAgentRequest(key=A.to_proto(), keep_tokens=600)
    for meanwhile in (lambda w: w.hot.drop(A), lambda w: _raise(Unavailable("gone"))):
        world = World(agent(version=("u", 2)))
        world.make_hot(A, 700)
        world.store.ledger = ledger(600)
        world.store.meanwhile = lambda w=world, what=meanwhile: what(w)
        await world.servicer.TrimAgent(trim, None)
        assert not len(world.hot)
        world.pool.check_integrity([])


def _raise(error: Exception) -> None:
    raise error
