"""The random bytes of versions: every operation that makes one draws them, whoever names one is held to them."""

import grpc
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running, code, field_of

OTHER = bytes(16)


async def trim(store: Running, keep: int, **fields: object) -> types_pb2.AgentVersion:
    request = agent_pb2.TrimAgentRequest(key=kv.key(), keep_tokens=keep, **fields)  # type: ignore[arg-type]
    return (await store.agents.TrimAgent(request)).agent.version


async def fork(store: Running, new: str, **fields: object) -> types_pb2.AgentVersion:
    request = agent_pb2.ForkAgentRequest(key=kv.key(), new_agent_id=new, **fields)  # type: ignore[arg-type]
    return (await store.agents.ForkAgent(request)).agent.version


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
