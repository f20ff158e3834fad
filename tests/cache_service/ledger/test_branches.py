"""Forks, snapshots, trims and restores over the socket: exact ledgers, who keeps which files, what leaves no bytes."""

import grpc
import pytest

from agentmem.errors import NotFound, from_rpc
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running, code
from tests.cache_service.rpc.test_servicer_agents import TEXT, TOKENS, secret_turn, traces


async def commit(
    store: Running, tokens: list[int], agent: str = "ada", keep: int | None = None
) -> types_pb2.AgentVersion:
    opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(agent)))
    keep = len(opened.ledger.token_ids) if keep is None else keep
    return (await store.cache.CommitTurn(kv.turn(tokens, opened.version, keep, kv.key(agent)))).version


async def tokens(store: Running, agent: str = "ada") -> list[int]:
    ledger = (await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(agent)))).ledger
    assert ledger.text == b"".join(str(token).encode() for token in ledger.token_ids)
    assert all(turn.end_token <= len(ledger.token_ids) for turn in ledger.turns)
    return list(ledger.token_ids)


async def fork(store: Running, new: str, agent: str = "ada", **fields: int) -> agent_pb2.Agent:
    request = agent_pb2.ForkAgentRequest(key=kv.key(agent), new_agent_id=new, **fields)  # type: ignore[arg-type]
    return (await store.agents.ForkAgent(request)).agent


async def trim(store: Running, keep: int, if_version: int | None = None) -> agent_pb2.Agent:
    request = agent_pb2.TrimAgentRequest(key=kv.key(), keep_tokens=keep, if_version=if_version)
    return (await store.agents.TrimAgent(request)).agent


async def snapshot(store: Running, name: str) -> agent_pb2.Snapshot:
    return (await store.agents.CreateSnapshot(agent_pb2.CreateSnapshotRequest(key=kv.key(), name=name))).snapshot


async def restore(store: Running, name: str) -> agent_pb2.Agent:
    return (await store.agents.RestoreSnapshot(agent_pb2.RestoreSnapshotRequest(key=kv.key(), name=name))).agent


async def forget(store: Running, name: str) -> None:
    await store.agents.DeleteSnapshot(agent_pb2.DeleteSnapshotRequest(key=kv.key(), name=name))


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
        found = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key(agent)))).agent
        return (found.forked_from.agent_id, found.forked_from.version) if found.HasField("forked_from") else None

    await commit(store, [1])
    parent = await commit(store, [2])
    child = await fork(store, "eve")
    assert (child.forked_from.agent_id, child.forked_from.version) == ("ada", 2)
    await fork(store, "old", at_version=1)
    await fork(store, "kid", "eve")
    await commit(store, [3], "eve")
    await commit(store, [3])
    assert [await source(agent) for agent in ("ada", "eve", "old", "kid")] == [None, ("ada", 2), ("ada", 1), ("eve", 1)]
    await store.delete(kv.key())
    await commit(store, [9])
    assert [await source(agent) for agent in ("ada", "eve", "old", "kid")] == [None, None, None, ("eve", 1)]
    rows = store.store._database.read_blocking(lambda c: c.execute("SELECT uid, forked_uid FROM agents").fetchall())
    assert len(rows) == 4 and parent.uid not in {uid for row in rows for uid in row}


async def test_a_fork_is_born_with_its_own_times(store: Running) -> None:
    await commit(store, [1])
    for times in (types_pb2.Expiry(), types_pb2.Expiry(ttl={"seconds": 5}, delete_after={"seconds": 9})):
        name = f"fork {times.ttl.seconds}"
        request = agent_pb2.ForkAgentRequest(key=kv.key(), new_agent_id=name, expiry=times)
        made = (await store.agents.ForkAgent(request)).agent
        assert (made.HasField("ttl"), made.HasField("delete_after")) == (times.HasField("ttl"),) * 2
        assert (made.ttl, made.delete_after) == (times.ttl, times.delete_after)
    bad = agent_pb2.ForkAgentRequest(key=kv.key(), new_agent_id="bad", expiry={"ttl": {"seconds": -1}})
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await store.agents.ForkAgent(bad)
    assert code(error) is grpc.StatusCode.INVALID_ARGUMENT


async def test_unknown_snapshots_and_agents_are_not_found(store: Running) -> None:
    for call in (names(store), snapshot(store, "x"), restore(store, "x"), forget(store, "x"), trim(store, 0)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        refused = from_rpc(error.value)
        assert isinstance(refused, NotFound) and refused.kind == "agent"
    await commit(store, [1])
    for call in (restore(store, "x"), forget(store, "x")):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        refused = from_rpc(error.value)
        assert isinstance(refused, NotFound) and (refused.kind, refused.name) == ("snapshot", "x")


async def test_snapshots_are_listed_newest_first_in_pages(store: Running) -> None:
    await commit(store, [1])
    wanted = [f"s{number}" for number in range(7)]
    for name in wanted:
        await snapshot(store, name)
    for size in (None, 1, 3, 7):
        assert await names(store, page_size=size) == wanted[::-1]


async def test_a_deleted_branch_leaves_no_bytes(store: Running) -> None:
    packed = b"".join(token.to_bytes(4, "little") for token in TOKENS[200:202])
    await store.cache.CommitTurn(secret_turn("ada"))
    await trim(store, 0)
    assert traces(store.data, TEXT) and traces(store.data, packed)
    await forget(store, "auto-1")
    assert traces(store.data, TEXT, packed) == []
    assert await tokens(store) == []


async def test_branches_stay_in_their_namespace(store: Running) -> None:
    await commit(store, [1])
    request = agent_pb2.ForkAgentRequest(key=kv.key(namespace="other"), new_agent_id="eve")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await store.agents.ForkAgent(request)
    assert code(error) is grpc.StatusCode.NOT_FOUND
