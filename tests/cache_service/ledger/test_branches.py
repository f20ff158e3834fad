"""Forks, snapshots, trims and restores over the socket: exact ledgers, who keeps which files, what leaves no bytes."""

from agentmem.errors import NotFound
from agentmem.v1 import agent_pb2, types_pb2
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, refused


async def names(store: Running, agent: str = "ada", page_size: int | None = None) -> list[str]:
    found, token = [], ""
    while True:
        request = agent_pb2.ListSnapshotsRequest(key=kv.key(agent), page_size=page_size, page_token=token)
        response = await store.agents.ListSnapshots(request)
        found += [each.name for each in response.snapshots]
        token = response.next_page_token
        if not token:
            return found


async def test_a_fork_knows_its_source_until_that_is_deleted(store: Running) -> None:
    async def source(agent: str) -> tuple[str, int] | None:
        found = await store.agent(agent)
        return (found.forked_from.agent_id, found.forked_from.version) if found.HasField("forked_from") else None

    await store.commit([1])
    parent = await store.commit([2])
    child = await store.fork("eve")
    assert (child.forked_from.agent_id, child.forked_from.version) == ("ada", 2)
    await store.fork("old", at_version=1)
    await store.fork("kid", "eve")
    await store.commit([3], "eve")
    await store.commit([3])
    assert [await source(agent) for agent in ("ada", "eve", "old", "kid")] == [None, ("ada", 2), ("ada", 1), ("eve", 1)]
    await store.delete(kv.key())
    await store.commit([9])
    assert [await source(agent) for agent in ("ada", "eve", "old", "kid")] == [None, None, None, ("eve", 1)]
    rows = store.store._database.read_blocking(lambda c: c.execute("SELECT uid, forked_uid FROM agents").fetchall())
    assert len(rows) == 4 and parent.uid not in {uid for row in rows for uid in row}


async def test_a_fork_is_born_with_its_own_times(store: Running) -> None:
    await store.commit([1])
    for times in (types_pb2.Expiry(), types_pb2.Expiry(ttl={"seconds": 5}, delete_after={"seconds": 9})):
        name = f"fork {times.ttl.seconds}"
        request = agent_pb2.ForkAgentRequest(key=kv.key(), new_agent_id=name, expiry=times)
        made = (await store.agents.ForkAgent(request)).agent
        assert (made.HasField("ttl"), made.HasField("delete_after")) == (times.HasField("ttl"),) * 2
        assert (made.ttl, made.delete_after) == (times.ttl, times.delete_after)
    bad = agent_pb2.ForkAgentRequest(key=kv.key(), new_agent_id="bad", expiry={"ttl": {"seconds": -1}})
    await fails(store.agents.ForkAgent(bad), "INVALID_ARGUMENT")


async def test_unknown_snapshots_and_agents_are_not_found(store: Running) -> None:
    for call in (names(store), store.snapshot("x"), store.restore("x"), store.forget("x"), store.trim(0)):
        error = await refused(call)
        assert isinstance(error, NotFound) and error.kind == "agent"
    await store.commit([1])
    for call in (store.restore("x"), store.forget("x")):
        error = await refused(call)
        assert isinstance(error, NotFound) and (error.kind, error.name) == ("snapshot", "x")


async def test_snapshots_are_listed_newest_first_in_pages(store: Running) -> None:
    await store.commit([1])
    wanted = [f"s{number}" for number in range(7)]
    for name in wanted:
        await store.snapshot(name)
    for size in (None, 1, 3, 7):
        assert await names(store, page_size=size) == wanted[::-1]


async def test_branches_stay_in_their_namespace(store: Running) -> None:
    await store.commit([1])
    request = agent_pb2.ForkAgentRequest(key=kv.key(namespace="other"), new_agent_id="eve")
    await fails(store.agents.ForkAgent(request), "NOT_FOUND")
