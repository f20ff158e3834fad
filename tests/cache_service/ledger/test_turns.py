"""Commits over the socket: replay, conflicts, revisions, and what is refused before anything changes."""

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, wrong_field


async def test_of_concurrent_writers_one_wins(store: Running) -> None:
    base = (await store.cache.CommitTurn(kv.turn([0]))).version

    async def commit(token: int) -> int | grpc.StatusCode:
        try:
            await store.cache.CommitTurn(kv.turn([token], base, keep=1))
        except grpc.aio.AioRpcError as error:
            return error.code()
        return token

    outcomes = await asyncio.gather(*map(commit, range(1, 21)))
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert outcomes.count(grpc.StatusCode.ABORTED) == 19
    opened = await store.open()
    assert list(opened.ledger.token_ids) == [0, winner] and opened.version.version == 2


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("keep_tokens", {"keep_tokens": 2}),
        ("offsets", {"offsets": [1]}),
        ("offsets", {"token_ids": [9], "text": b"9"}),
        ("offsets", {"offsets": [2, 1, 2], "token_ids": [1, 2, 3]}),
        ("offsets", {"text": b"xyz"}),
        ("offsets", {"token_ids": [], "offsets": [], "text": b"x", "generated_tokens": 0}),
        ("generated_tokens", {"generated_tokens": 3}),
        ("tokenizer_hash", {"tokenizer_hash": ""}),
        ("request_id", {"request_id": "r" * 129}),
        ("request_digest", {"request_digest": b"r" * 65}),
        ("base.version", {"base": types_pb2.AgentVersion(uid="u", version=2**63)}),
        ("key.namespace", {"key": kv.key(namespace="")}),
        ("key.agent_id", {"key": kv.key("")}),
        ("key.model_id", {"key": kv.key(model="")}),
        ("label", {"label": "l" * 257}),
    ],
)
async def test_what_cannot_be_is_refused_and_named(store: Running, field: str, changes: dict[str, Any]) -> None:
    first = (await store.cache.CommitTurn(kv.turn([1]))).version
    request = kv.turn([2, 3], first, keep=1)
    for name in changes:
        request.ClearField(name)  # type: ignore[arg-type]
    request.MergeFrom(pb.CommitTurnRequest(**changes))
    assert await wrong_field(store.cache.CommitTurn(request)) == field
    opened = await store.open()
    assert opened.version == first and list(opened.ledger.token_ids) == [1]


async def test_a_ledger_never_mixes_tokenizers(store: Running) -> None:
    first = (await store.cache.CommitTurn(kv.turn([1, 2]))).version
    request = kv.turn([3], first, keep=1)
    request.tokenizer_hash = "other"
    await fails(store.cache.CommitTurn(request), "FAILED_PRECONDITION")
    request.keep_tokens = 0
    await store.cache.CommitTurn(request)
    opened = await store.open()
    assert opened.ledger.tokenizer_hash == "other" and list(opened.ledger.token_ids) == [3]


async def test_text_may_end_inside_a_character(store: Running) -> None:
    text = "é🙂".encode()
    first = kv.turn([])
    first.MergeFrom(pb.CommitTurnRequest(token_ids=[1, 2, 3], text=text[:4], offsets=[1, 1, 4]))
    version = (await store.cache.CommitTurn(first)).version
    second = kv.turn([], version, keep=3)
    second.MergeFrom(pb.CommitTurnRequest(token_ids=[2**32 - 1], text=text[4:], offsets=[2]))
    await store.cache.CommitTurn(second)
    opened = await store.open()
    assert opened.ledger.text == text and list(opened.ledger.offsets) == [1, 1, 4, 6]
    assert opened.ledger.token_ids[-1] == 2**32 - 1


async def test_the_turn_that_creates_an_agent_sets_when_it_expires(store: Running) -> None:
    times = types_pb2.Expiry(ttl=duration_pb2.Duration(seconds=5), delete_after=duration_pb2.Duration(seconds=9))
    first = (await store.cache.CommitTurn(kv.turn([1], expiry=times))).version
    later = types_pb2.Expiry(ttl=duration_pb2.Duration(seconds=6))
    await store.cache.CommitTurn(kv.turn([2], first, keep=1, expiry=later))
    agent = await store.agent()
    assert (agent.ttl.seconds, agent.delete_after.seconds) == (5, 9), "later turns change nothing"
    other = kv.key("other")
    await store.cache.CommitTurn(kv.turn([1], agent=other))
    agent = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=other))).agent
    assert not agent.HasField("ttl") and not agent.HasField("delete_after")
    assert (
        await wrong_field(
            store.cache.CommitTurn(kv.turn([1], agent=kv.key("bad"), expiry=types_pb2.Expiry(ttl={"nanos": -1})))
        )
        == "expiry.ttl"
    )


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
