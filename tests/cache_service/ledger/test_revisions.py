"""The random bytes of versions: every operation that makes one draws them, whoever names one is held to them."""

import pytest

from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, wrong_field

OTHER = bytes(16)


async def test_a_repeated_commit_that_returns_to_a_snapshot_is_known(store: Running) -> None:
    """It makes two versions, and its turn's is the second."""
    first = (await store.cache.CommitTurn(kv.turn([1, 2, 3]))).version
    await store.snapshot("s")
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
        await fails(store.cache.CommitTurn(kv.turn([5], base, keep=4)), "ABORTED")
        opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(), known=base))
        assert opened.HasField("ledger") and opened.version == second
    for version, right in ((1, first), (2, second)):
        await fails(store.fork("eve", at_version=version, at_revision=OTHER), "NOT_FOUND")
        await store.fork(f"eve-{version}", at_version=version, at_revision=right.revision)
    await fails(store.trim(1, if_version=2, if_revision=OTHER), "ABORTED")
    cut = await store.trim(1, if_version=2, if_revision=second.revision)
    assert await store.trim(1, if_version=2, if_revision=second.revision) == cut, "it was done before"
    await fails(store.trim(1, if_version=2, if_revision=OTHER), "ABORTED")


@pytest.mark.parametrize("field", ["at", "if"])
async def test_a_revision_has_16_bytes_and_a_number(store: Running, field: str) -> None:
    await store.cache.CommitTurn(kv.turn([1, 2]))
    for fields in ({f"{field}_revision": OTHER}, {f"{field}_version": 1, f"{field}_revision": b"short"}):
        assert (
            await wrong_field(store.trim(1, **fields) if field == "if" else store.fork("eve", **fields))
            == f"{field}_revision"
        )
    assert await wrong_field(store.cache.CommitTurn(kv.turn([1], commit_id=b"short"))) == "commit_id"
