"""Commits over the socket: replay, conflicts, and what is refused before anything changes."""

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
