"""The random bytes of versions: every operation that makes one draws them, whoever names one is held to them."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service import checksums
from cache_service.ledger import schema
from cache_service.offline.recover import recover
from tests.cache_service import kv
from tests.cache_service.conftest import Running, code, field_of, running
from tests.cache_service.offline.directory import fill_branches

OTHER = bytes(16)


async def trim(store: Running, keep: int, **fields: object) -> types_pb2.AgentVersion:
    request = agent_pb2.TrimAgentRequest(key=kv.key(), keep_tokens=keep, **fields)  # type: ignore[arg-type]
    return (await store.agents.TrimAgent(request)).agent.version


async def fork(store: Running, new: str, **fields: object) -> types_pb2.AgentVersion:
    request = agent_pb2.ForkAgentRequest(key=kv.key(), new_agent_id=new, **fields)  # type: ignore[arg-type]
    return (await store.agents.ForkAgent(request)).agent.version


async def test_every_new_version_has_a_revision_of_its_own(store: Running) -> None:
    made = [(await store.cache.CommitTurn(kv.turn([1, 2, 3]))).version]
    made.append((await store.cache.CommitTurn(kv.turn([4], made[-1], keep=3))).version)
    named = agent_pb2.CreateSnapshotRequest(key=kv.key(), name="s")
    assert (await store.agents.CreateSnapshot(named)).snapshot.version == made[-1]
    made.append(await trim(store, 2))
    restore = agent_pb2.RestoreSnapshotRequest(key=kv.key(), name="s")
    made.append((await store.agents.RestoreSnapshot(restore)).agent.version)
    assert (await store.agents.RestoreSnapshot(restore)).agent.version == made[-1], "nothing has changed"
    made.append(await fork(store, "eve"))
    opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))
    assert opened.version == made[3]
    create = pb.CreateAgentRequest(key=kv.key("imported"), ledger=opened.ledger)
    made.append((await store.cache.CreateAgent(create)).version)
    returned = kv.turn([9], made[3], keep=1, snapshot_version=2)
    made.append((await store.cache.CommitTurn(returned)).version)
    assert [each.version for each in made] == [1, 2, 3, 4, 1, len(opened.ledger.turns), 6]
    assert {len(each.revision) for each in made} == {16} and len({each.revision for each in made}) == len(made)


async def test_a_repeated_commit_that_returns_to_a_snapshot_is_known(store: Running) -> None:
    """It makes two versions, and its turn's is the second."""
    first = (await store.cache.CommitTurn(kv.turn([1, 2, 3]))).version
    await store.agents.CreateSnapshot(agent_pb2.CreateSnapshotRequest(key=kv.key(), name="s"))
    base = (await store.cache.CommitTurn(kv.turn([4], first, keep=3))).version
    turn = kv.turn([9], base, keep=1, snapshot_version=1, commit_id=bytes(range(16)))
    made = (await store.cache.CommitTurn(turn)).version
    assert (await store.cache.CommitTurn(turn)).version == made and made.version == 4
    await store.cache.CommitTurn(kv.turn([5], made, keep=2))
    assert (await store.cache.CommitTurn(turn)).version == made


async def test_who_names_a_version_is_held_to_its_revision(store: Running) -> None:
    first = (await store.cache.CommitTurn(kv.turn([1, 2, 3]))).version
    second = (await store.cache.CommitTurn(kv.turn([4], first, keep=3))).version
    for stranger in (OTHER, b"", first.revision):
        base = types_pb2.AgentVersion(uid=second.uid, version=2, revision=stranger)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await store.cache.CommitTurn(kv.turn([5], base, keep=4))
        assert code(error) is grpc.StatusCode.ABORTED
        opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(), known=base))
        assert opened.HasField("ledger") and opened.version == second
    for version, right in ((1, first), (2, second)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await fork(store, "eve", at_version=version, at_revision=OTHER)
        assert code(error) is grpc.StatusCode.NOT_FOUND
        await fork(store, f"eve-{version}", at_version=version, at_revision=right.revision)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await trim(store, 1, if_version=2, if_revision=OTHER)
    assert code(error) is grpc.StatusCode.ABORTED
    cut = await trim(store, 1, if_version=2, if_revision=second.revision)
    assert await trim(store, 1, if_version=2, if_revision=second.revision) == cut, "it was done before"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await trim(store, 1, if_version=2, if_revision=OTHER)
    assert code(error) is grpc.StatusCode.ABORTED


@pytest.mark.parametrize("field", ["at", "if"])
async def test_a_revision_has_16_bytes_and_a_number(store: Running, field: str) -> None:
    await store.cache.CommitTurn(kv.turn([1, 2]))
    for fields in ({f"{field}_revision": OTHER}, {f"{field}_version": 1, f"{field}_revision": b"short"}):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await (trim(store, 1, **fields) if field == "if" else fork(store, "eve", **fields))
        assert field_of(error) == f"{field}_revision"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await store.cache.CommitTurn(kv.turn([1], commit_id=b"short"))
    assert field_of(error) == "commit_id"


def as_before(data: Path) -> None:
    """Make the database what it was before there were revisions, with the ledgers that it has, and no files."""
    (data / "store.db").rename(data / "later.db")
    with closing(sqlite3.connect(data / "store.db", isolation_level=None)) as connection:
        checksums.register(connection)
        for script in schema.MIGRATIONS[:2]:
            connection.executescript(script)
        connection.execute("ATTACH ? AS later", (str(data / "later.db"),))
        for table in ("segments", "agents", "turns", "snapshots"):
            later = {row[1] for row in connection.execute(f"PRAGMA later.table_info({table})")}
            names = ", ".join(
                row[1] for row in connection.execute(f"PRAGMA main.table_info({table})") if row[1] in later
            )
            connection.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM later.{table}")
        connection.execute("PRAGMA user_version = 2")
    for path in data.glob("later.db*"):
        path.unlink()


@pytest.fixture
async def older(data: Path) -> Path:
    """A directory of before: agents with turns, snapshots and forks."""
    await fill_branches(data)
    async with running(data) as store:
        first = (await store.cache.CommitTurn(kv.turn([1, 2], agent=kv.key("named"), request_id="r1"))).version
        second = kv.turn([3], first, 2, kv.key("named"), request_id="r2")
        await store.cache.CommitTurn(second)
        for name in ("one", "two"):
            made = agent_pb2.CreateSnapshotRequest(key=kv.key("named"), name=name)
            await store.agents.CreateSnapshot(made)
    as_before(data)
    return data


async def test_a_recovered_directory_of_before_gets_revisions(older: Path) -> None:
    """Its last turn and the snapshots of it are the present state; a snapshot of another state has a revision, too."""
    recovered = older.with_name("recovered")
    recover(older, recovered)
    async with running(recovered) as store:
        before = {agent.key.agent_id: agent.version for agent in await agents_of(store)}
        assert {len(version.revision) for version in before.values()} == {16}
        last = pb.OpenCacheRequest(key=kv.key("named"), request_id="r2")
        assert (await store.cache.OpenCache(last)).turn.version == before["named"]
        others = 0
        for agent, version in before.items():
            snapshots = agent_pb2.ListSnapshotsRequest(key=kv.key(agent), page_size=100)
            for each in (await store.agents.ListSnapshots(snapshots)).snapshots:
                assert len(each.version.revision) == 16
                assert (each.version.revision == version.revision) == (each.version.version == version.version)
                others += each.version != version
        assert others


async def agents_of(store: Running) -> Iterator[agent_pb2.Agent]:
    return iter((await store.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default"))).agents)


async def test_a_directory_of_before_gets_revisions_and_goes_on(older: Path) -> None:
    async with running(older) as store:
        before = {agent.key.agent_id: agent.version for agent in await agents_of(store)}
        assert len(before) > 3
        assert {len(version.revision) for version in before.values()} == {16}
        assert len({version.revision for version in before.values()}) == len(before)
        named = before["named"]
        last = pb.OpenCacheRequest(key=kv.key("named"), request_id="r2")
        assert (await store.cache.OpenCache(last)).turn.version == named
        found = await store.agents.FindAgent(
            agent_pb2.FindAgentRequest(namespace="default", model_id="demo", request_id="r1")
        )
        assert (found.version.version, found.version.revision) == (1, b""), "an earlier turn has none"
        kept = (await store.agents.ListSnapshots(agent_pb2.ListSnapshotsRequest(key=kv.key("named")))).snapshots
        assert [each.version for each in kept] == [named, named]
        for agent, version in before.items():
            snapshots = agent_pb2.ListSnapshotsRequest(key=kv.key(agent), page_size=100)
            for each in (await store.agents.ListSnapshots(snapshots)).snapshots:
                assert len(each.version.revision) == 16
                assert (each.version.revision == version.revision) == (each.version.version == version.version)
        await fork(store, "child", at_version=before["ada"].version, at_revision=before["ada"].revision)
        after = (await store.cache.CommitTurn(kv.turn([4], named, 3, kv.key("named")))).version
        assert (after.uid, after.version) == (named.uid, named.version + 1) and len(after.revision) == 16
    async with running(older) as store:  # and they stay
        again = {agent.key.agent_id: agent.version for agent in await agents_of(store)}
        assert {**before, "named": after} == {name: each for name, each in again.items() if name != "child"}
