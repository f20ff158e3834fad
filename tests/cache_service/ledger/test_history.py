"""ListTurns on the store: what each commit brought, what trims left of it, and what was said."""

from typing import Any

import pytest

from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.rpc import agents
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, wrong_field


def said(answer: str, *places: tuple[str, int, int], **delta: Any) -> pb.TurnRecord:
    """Return a turn's record; places are counted from the end of its prompt."""
    messages = [pb.MessagePlace(role=role, start_from_end=start, end_from_end=end) for role, start, end in places]
    return pb.TurnRecord(delta=inference_pb2.Delta(text=answer, **delta), messages=messages)


async def turns(store: Running, agent: str = "ada", **fields: Any) -> list[agent_pb2.Turn]:
    found: list[agent_pb2.Turn] = []
    request = agent_pb2.ListTurnsRequest(key=kv.key(agent), **{"include_text": True, **fields})
    while True:
        page = await store.agents.ListTurns(request)
        assert len(page.turns) <= (request.page_size or 100)
        found += page.turns
        request.page_token = page.next_page_token
        if not request.page_token:
            return found


def spoken(turn: agent_pb2.Turn) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in turn.messages]


async def test_turns_are_read_in_order_page_by_page(store: Running) -> None:
    for number in range(5):
        await store.commit([10 + number, 20, 3], request_id=f"r{number}", record=said("three"))
    await store.commit([99], "eve")
    for size in (None, 1, 2, 5):
        found = await turns(store, page_size=size)
        assert [turn.request_id for turn in found] == [f"r{number}" for number in range(5)]
        assert [(turn.first_token, turn.tokens, turn.generated_tokens) for turn in found] == [
            (3 * number, 3, 1) for number in range(5)
        ]
        assert [turn.version for turn in found] == [1, 2, 3, 4, 5]
        assert [turn.text for turn in found] == [b"%d203" % number for number in range(10, 15)]
        times = [turn.create_time.ToNanoseconds() for turn in found]
        assert times == sorted(times) and times[0] > 0


async def test_messages_are_where_the_commit_said(store: Running) -> None:
    call = inference_pb2.ToolCall(id="c", name="f", arguments_json='{"a": 1}')
    await store.commit(
        [10, 20, 30, 4], record=said("four", ("system", 6, 4), ("user", 2, 0), tool_calls=[call], reasoning="hm")
    )
    (turn,) = await turns(store)
    assert spoken(turn) == [("system", "10"), ("user", "30"), ("assistant", "four")]
    assert turn.messages[-1].reasoning_content == "hm"
    assert '"name": "f"' in turn.messages[-1].tool_calls_json
    (turn,) = await turns(store, include_text=False)
    assert (spoken(turn), turn.text, turn.tokens) == ([], b"", 4)


async def test_what_has_no_places_is_shown_as_it_is_rendered(store: Running) -> None:
    await store.commit([10, 4], record=said("four"))
    await store.commit([11, 12], generated_tokens=1, record=said("x", ("user", 99, 0)))  # a place that is not there
    assert [spoken(turn) for turn in await turns(store)] == [
        [("", "10"), ("assistant", "four")],
        [("", "11"), ("assistant", "x")],
    ]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (4, [("user", "11")]),
        (5, [("user", "1121"), ("system", "5")][:1]),
        (6, [("user", "1121"), ("system", "5")]),
        (7, [("user", "1121"), ("system", "5"), ("assistant", "6")]),
    ],
)
async def test_what_a_trim_left_is_cut(store: Running, keep: int, left: list[tuple[str, str]]) -> None:
    await store.commit([10, 20, 3], record=said("three", ("user", 4, 0)))
    places = (("user", 5, 1), ("system", 1, 0))
    await store.commit([11, 21, 5, 6, 7], record=said("six seven", *places), generated_tokens=2)
    await store.trim(keep)
    for known in (True, False):  # the second time, nothing else has the rest any more
        whole, rest = await turns(store)
        assert not whole.cut and spoken(whole) == [("user", "1020"), ("assistant", "three")]
        assert rest.cut and spoken(rest) == (left if known else [("", rest.text.decode())])
        assert (rest.tokens, rest.generated_tokens) == (keep - 3, int(known and keep == 7))
        for kept in (await store.agents.ListSnapshots(agent_pb2.ListSnapshotsRequest(key=kv.key()))).snapshots:
            await store.forget(kept.name)


async def test_a_fork_has_what_its_parent_was_told_even_when_that_is_gone(store: Running) -> None:
    await store.commit([10, 4], request_id="r", record=said("four", ("user", 2, 0)))
    await store.fork("fork")
    assert spoken((await turns(store, "fork"))[0]) == [("user", "10"), ("assistant", "four")]
    await store.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key()))
    (turn,) = await turns(store, "fork")
    assert (spoken(turn), turn.request_id) == ([("", "10"), ("assistant", "4")], "")
    assert not turn.HasField("create_time")


async def test_what_a_turn_reported_is_kept_with_it(store: Running) -> None:
    cache = types_pb2.CacheReport(match=types_pb2.MATCH_EXTEND, miss_reason=types_pb2.MISS_REASON_EVICTED)
    finished = inference_pb2.Finished(
        reason=types_pb2.FINISH_REASON_STOP,
        usage=types_pb2.Usage(cached=[types_pb2.TierTokens(tier=types_pb2.TIER_WARM, tokens=7)]),
    )
    finished.timings.time_to_first_token.FromMilliseconds(120)
    record = pb.TurnRecord(started=inference_pb2.Started(cache=cache), finished=finished)
    await store.commit([10, 4])
    await store.commit([11, 4], record=record)
    for text in (False, True):
        unknown, told = await turns(store, include_text=text)
        assert not unknown.HasField("report")
        wanted = {"cache": cache, "usage": finished.usage, "timings": finished.timings, "reason": finished.reason}
        assert told.report == agent_pb2.TurnReport(**wanted)  # type: ignore[arg-type]


async def test_a_page_ends_where_its_texts_are_long(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MAX_PAGE_BYTES", 9)
    for _ in range(4):
        await store.commit([1000, 2], record=said(""))
    request = agent_pb2.ListTurnsRequest(key=kv.key(), include_text=True)
    assert len((await store.agents.ListTurns(request)).turns) == 1, "two would be ten bytes"
    assert len(await turns(store)) == 4
    assert len((await store.agents.ListTurns(agent_pb2.ListTurnsRequest(key=kv.key()))).turns) == 4
    monkeypatch.setattr(agents, "MAX_PAGE_BYTES", 1)
    assert len(await turns(store)) == 4, "a long turn is a page of its own"


async def test_who_is_not_there_has_no_turns(store: Running) -> None:
    await store.commit([1])
    for key in (kv.key("eve"), kv.key(namespace="other"), kv.key(model="other")):
        await fails(store.agents.ListTurns(agent_pb2.ListTurnsRequest(key=key)), "NOT_FOUND")
    for field, value in (("page_size", 0), ("page_token", "x")):
        request = agent_pb2.ListTurnsRequest(key=kv.key(), **{field: value})  # type: ignore[arg-type]
        assert await wrong_field(store.agents.ListTurns(request)) == field
