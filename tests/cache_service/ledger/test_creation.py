"""Agents that are there at once, with all of their turns."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.quotas import Quotas
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, running, wrong_field


def content(tokens: list[int], *turns: tuple[int, int]) -> pb.Ledger:
    turn = kv.turn(tokens)
    places = [pb.LedgerTurn(end_token=end, generated_tokens=generated) for end, generated in turns]
    return pb.Ledger(
        token_ids=turn.token_ids,
        text=turn.text,
        offsets=turn.offsets,
        tokenizer_hash="t" if tokens else "",
        turns=places,
    )


async def create(store: Running, ledger: pb.Ledger, agent: str = "ada") -> types_pb2.AgentVersion:
    return (await store.cache.CreateAgent(pb.CreateAgentRequest(key=kv.key(agent), ledger=ledger))).version


async def test_tokens_behind_the_last_turn_are_no_turn(store: Running) -> None:
    version = await create(store, content([1, 2, 3], (2, 1)))
    opened = await store.open()
    assert list(opened.ledger.token_ids) == [1, 2, 3]
    assert [(turn.version, turn.end_token) for turn in opened.ledger.turns] == [(1, 2)]
    assert version.version == 2
    after = (await store.cache.CommitTurn(kv.turn([4], version, keep=3))).version
    assert after.version == 3
    assert [(turn.version, turn.end_token) for turn in (await store.open()).ledger.turns] == [(1, 2), (3, 4)]


async def test_it_can_be_forked_at_a_turn_and_deleted(store: Running) -> None:
    await create(store, content([1, 2, 3], (1, 0), (3, 1)))
    fork = agent_pb2.ForkAgentRequest(key=kv.key(), new_agent_id="bob", at_version=1)
    assert (await store.agents.ForkAgent(fork)).agent.tokens == 1
    assert (await store.delete()).deleted == 1
    assert list((await store.open("bob")).ledger.token_ids) == [1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tokenizer_hash": ""}, "ledger.tokenizer_hash"),
        ({"text": b"1"}, "ledger.offsets"),
        ({"turns": [pb.LedgerTurn(end_token=3)]}, "ledger.turns[0]"),
        ({"turns": [pb.LedgerTurn(end_token=2), pb.LedgerTurn(end_token=1)]}, "ledger.turns[1]"),
        ({"turns": [pb.LedgerTurn(end_token=1), pb.LedgerTurn(end_token=2, generated_tokens=2)]}, "ledger.turns[1]"),
    ],
)
async def test_what_does_not_fit_together_is_refused(store: Running, change: dict[str, Any], field: str) -> None:
    good = {"token_ids": [1, 2], "text": b"12", "offsets": [1, 2], "tokenizer_hash": "t"}
    assert await wrong_field(create(store, pb.Ledger(**{**good, **change}))) == field
    assert (await store.open()).version.version == 0


async def test_a_ledger_beyond_the_namespaces_quota_makes_no_agent(data: Path) -> None:
    async with running(data, DiskLimits(1 << 30, 0), Quotas(400)) as store:
        await create(store, content([1, 2, 3], (3, 1)))
        await fails(create(store, content(list(range(100))), "bob"), "RESOURCE_EXHAUSTED")
        assert (await store.open("bob")).version.version == 0
        await store.delete()
        await create(store, content([1, 2, 3], (3, 1)), "bob")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tokens=st.lists(st.integers(0, 2**32 - 1), max_size=12), data=st.data())
async def test_whatever_is_created_is_read(store: Running, tokens: list[int], data: st.DataObject) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    turns = []
    for before, end in zip([0, *ends], ends, strict=False):
        turns.append((end, data.draw(st.integers(0, end - before))))
    ledger = content(tokens, *turns)
    await create(store, ledger)
    for number, turn in enumerate(ledger.turns, 1):
        turn.version = number
    assert (await store.open()).ledger == ledger
    await store.delete()
