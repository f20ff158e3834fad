"""The end of an agent's context, commits that carry turns along, and the time of its template."""

from pathlib import Path

import pytest

from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.offline.check import check
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, running, wrong_field
from tests.cache_service.ledger.test_branches import names

OPENING = 1


async def policy(store: Running, agent: str = "ada") -> int:
    shown = (await store.agent(agent)).context_policy
    assert (await store.open(agent)).context_policy == shown
    return shown


async def set_policy(store: Running, value: int) -> agent_pb2.Agent:
    request = agent_pb2.SetContextPolicyRequest(key=kv.key(), context_policy=value)  # type: ignore[arg-type]
    return (await store.agents.SetContextPolicy(request)).agent


def turns(ledger: pb.Ledger) -> list[tuple[int, int]]:
    return [(turn.end_token, turn.generated_tokens) for turn in ledger.turns]


async def speak(store: Running) -> types_pb2.AgentVersion:
    """An agent of three turns: tokens 1 to 9."""
    for first in (1, 4, 7):
        request = kv.turn([first, first + 1, first + 2], (await store.open()).version, first - 1)
        request.opening_bytes, request.generated_tokens = OPENING, 1
        version = (await store.cache.CommitTurn(request)).version
    return version


def trimming(base: types_pb2.AgentVersion) -> pb.CommitTurnRequest:
    """Turn 10 11, which drops 2 to 6 and carries the third turn along."""
    request = kv.turn([7, 8, 9, 10, 11], base, 1)
    request.opening_bytes, request.generated_tokens = OPENING, 1
    request.carried_turns.add(end_token=4, generated_tokens=1)
    return request


async def test_a_policy_is_trim_until_it_is_set_and_forks_keep_it(store: Running) -> None:
    await store.commit([1, 2])
    assert await policy(store) == types_pb2.CONTEXT_POLICY_TRIM
    for value in (types_pb2.CONTEXT_POLICY_SUMMARIZE, types_pb2.CONTEXT_POLICY_REFUSE):
        assert (await set_policy(store, value)).context_policy == value
    await store.fork("bob")
    await store.commit([3])
    assert [await policy(store, agent) for agent in ("ada", "bob")] == [types_pb2.CONTEXT_POLICY_REFUSE] * 2


async def test_the_first_turn_sets_it_and_later_ones_do_not(store: Running) -> None:
    for wanted in (types_pb2.CONTEXT_POLICY_REFUSE, types_pb2.CONTEXT_POLICY_SUMMARIZE):
        base = await store.open()
        request = kv.turn([1], base.version, len(base.ledger.token_ids))
        request.context_policy = wanted
        await store.cache.CommitTurn(request)
    assert await policy(store) == types_pb2.CONTEXT_POLICY_REFUSE


@pytest.mark.parametrize("value", [types_pb2.CONTEXT_POLICY_UNSPECIFIED, 77])
async def test_what_is_no_policy_is_refused(store: Running, value: int) -> None:
    await store.commit([1])
    assert await wrong_field(set_policy(store, value)) == "context_policy"
    await fails(
        store.agents.SetContextPolicy(agent_pb2.SetContextPolicyRequest(key=kv.key("nobody"), context_policy=1)),
        "NOT_FOUND",
    )


async def test_turns_that_are_carried_along_stay_turns(store: Running) -> None:
    base = await speak(store)
    await store.cache.CommitTurn(trimming(base))
    ledger = (await store.open()).ledger
    assert (list(ledger.token_ids), ledger.opening_bytes) == ([1, 7, 8, 9, 10, 11], OPENING)
    assert ledger.text == b"17891011"
    assert turns(ledger) == [(4, 1), (6, 1)]
    assert await names(store) == ["auto-3"]
    await store.restore("auto-3")
    assert await store.tokens() == list(range(1, 10))
    assert turns((await store.open()).ledger) == [(3, 1), (6, 1), (9, 1)]


async def test_the_directory_is_whole_after_it(data: Path) -> None:
    async with running(data) as store:
        await store.cache.CommitTurn(trimming(await speak(store)))
        await store.trim(4)
        assert turns((await store.open()).ledger) == [(4, 1)]
    assert not check(data).findings


@pytest.mark.parametrize(("end", "generated"), [(0, 0), (7, 1), (4, 4)])
async def test_carried_turns_have_to_be_among_the_tokens(store: Running, end: int, generated: int) -> None:
    request = trimming(await speak(store))
    request.carried_turns[0].end_token, request.carried_turns[0].generated_tokens = end, generated
    assert await wrong_field(store.cache.CommitTurn(request)) == "carried_turns[0]"
    assert await store.tokens() == list(range(1, 10))


async def test_an_imported_agent_has_the_files_policy(store: Running) -> None:
    ledger = (await store.open()).ledger
    await speak(store)
    ledger = (await store.open()).ledger
    request = pb.CreateAgentRequest(key=kv.key("bob"), ledger=ledger, context_policy=types_pb2.CONTEXT_POLICY_SUMMARIZE)
    await store.cache.CreateAgent(request)
    assert await policy(store, "bob") == types_pb2.CONTEXT_POLICY_SUMMARIZE
    assert (await store.open("bob")).ledger == ledger


async def test_an_opening_is_no_longer_than_what_is_kept_of_it(store: Running) -> None:
    request = kv.turn([1, 2, 3], types_pb2.AgentVersion(), 0)
    request.opening_bytes = 2
    await store.cache.CommitTurn(request)
    await store.trim(1)
    assert (await store.open()).ledger.opening_bytes == 1


MONDAY, TUESDAY = "2026-03-02T09:30:00+01:00", "2026-03-03T09:30:00+01:00"


async def time(store: Running, agent: str = "ada") -> str:
    ledger = (await store.open(agent)).ledger
    shown = (await store.agent(agent)).template_time
    assert ledger.template_time == shown
    return str(shown)


async def test_each_state_has_its_own(store: Running) -> None:
    await store.commit([1, 2], template_time=MONDAY)
    await store.snapshot("monday")
    await store.commit([3, 4], template_time=TUESDAY)
    assert await time(store) == TUESDAY
    assert (await store.fork("eve")).template_time == TUESDAY
    assert (await store.fork("earlier", at_version=1)).template_time == MONDAY
    assert (await store.restore("monday")).template_time == MONDAY
    assert (await store.restore("auto-2")).template_time == TUESDAY
    assert (await store.trim(3)).template_time == TUESDAY
    assert (await store.trim(2)).template_time == MONDAY
    assert (await store.trim(0)).template_time == MONDAY
    assert [await time(store, agent) for agent in ("eve", "earlier", "ada")] == [TUESDAY, MONDAY, MONDAY]


async def test_an_imported_agent_has_the_files(store: Running) -> None:
    await store.commit([1, 2], template_time=MONDAY)
    ledger = (await store.open()).ledger
    await store.cache.CreateAgent(pb.CreateAgentRequest(key=kv.key("bob"), ledger=ledger))
    assert await time(store, "bob") == MONDAY
