import asyncio
import random

import pytest

from agentmem.errors import Cancelled, ResourceExhausted, Unavailable
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.domain import CallPart, TokenEvent
from inference_service.text.answering import AnswerDelta
from inference_service.turns.stream import TurnStream
from tests.inference_service.real_tokenizers import byte_level

Response = inference_pb2.GenerateResponse
STARTED = inference_pb2.Started(context_remaining=7)
FINISHED = Response(finished=inference_pb2.Finished(reason=types_pb2.FINISH_REASON_STOP))


def running(buffer: int = 100) -> TurnStream:
    return TurnStream(buffer)


def begun(buffer: int = 100) -> TurnStream:
    turn = running(buffer)
    turn.started(STARTED, byte_level())
    return turn


def finish(turn: TurnStream) -> None:
    turn.send(FINISHED)
    turn.end()


def call(identifier: str) -> inference_pb2.ToolCall:
    return inference_pb2.ToolCall(id=identifier, name="f", arguments_json="{}")


def token(number: int, text: str | None = None) -> TokenEvent:
    return TokenEvent(number, None, (), f"{number} " if text is None else text)


async def read(turn: TurnStream, events: list[Response] | None = None) -> list[Response]:
    """All events; `events` has them also where the turn raises."""
    events = [] if events is None else events
    async for event in turn.events():
        events.append(event)
    return events


def kinds(events: list[Response]) -> list[str | None]:
    return [event.WhichOneof("event") for event in events]


async def test_arguments_of_a_call_go_as_they_are_generated() -> None:
    """Its name, then its arguments piece by piece; pieces that were not taken go together."""
    turn, pieces = running(), (("get_weather", ""), ("", '{"city": '), ("", '"Par'), ("", 'is"}'))
    reader = asyncio.create_task(read(turn))
    turn.started(STARTED, byte_level())
    await asyncio.sleep(0)
    for number, (name, arguments) in enumerate(pieces):
        turn.take(TokenEvent(number, None, (), "", parts=(CallPart("call-1", name, arguments),)))
        for _ in range(2 if number < 2 else 0):
            await asyncio.sleep(0)
    turn.end()
    parts = [list(event.delta.tool_call_parts) for event in await reader if event.HasField("delta")]
    assert [[(part.id, part.name, part.arguments_json) for part in each] for each in parts] == [
        [("call-1", "get_weather", "")],
        [("call-1", "", '{"city": ')],
        [("call-1", "", '"Paris"}')],
    ]


async def test_text_comes_before_the_calls_of_a_delta() -> None:
    turn = begun()
    first, second, third = map(call, "abc")
    for event in (token(0, "x"), TokenEvent(1, None, (), "y", (first, second)), token(2, "z")):
        turn.take(event)
    await asyncio.sleep(0)
    turn.rest(AnswerDelta(text="rest", calls=(third,)))
    finish(turn)
    _, *deltas, last = await read(turn)
    assert last == FINISHED
    said = [(d.delta.text, list(d.delta.token_ids), [call.id for call in d.delta.tool_calls]) for d in deltas]
    assert said == [("xy", [0, 1], ["a", "b"]), ("zrest", [2], ["c"])]


async def test_calls_at_the_end_are_told_though_the_last_token_had_some() -> None:
    turn = begun()
    turn.take(TokenEvent(1, None, (), "", (call("a"),)))
    await asyncio.sleep(0)
    turn.rest(AnswerDelta(calls=(call("b"),)))
    finish(turn)
    _, *deltas, _ = await read(turn)
    assert [[call.id for call in d.delta.tool_calls] for d in deltas] == [["a"], ["b"]]


@pytest.mark.parametrize("seed", range(25))
async def test_order_and_text_whatever_the_pace(seed: int) -> None:
    rng = random.Random(seed)
    turn = running()

    async def pause() -> None:
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)

    async def slow_reader() -> list[Response]:
        events = []
        async for event in turn.events():
            events.append(event)
            await pause()
        return events

    reader = asyncio.create_task(slow_reader())
    await pause()
    turn.started(STARTED, byte_level())
    for number in range(20):
        await pause()
        turn.take(token(number))
    await asyncio.sleep(0)
    turn.rest(AnswerDelta(text="rest"))
    await pause()
    turn.send(FINISHED)
    await pause()
    turn.end()
    first, *deltas, last = await reader
    assert first.HasField("started") and last.HasField("finished")
    assert set(kinds(deltas)) == {"delta"}
    assert [i for event in deltas for i in event.delta.token_ids] == list(range(20))
    assert "".join(event.delta.text for event in deltas) == "".join(f"{n} " for n in range(20)) + "rest"


async def test_an_error_comes_after_what_was_said() -> None:
    turn = begun()
    turn.take(token(1))
    await asyncio.sleep(0)
    turn.end(Unavailable("the engine died"))
    events: list[Response] = []
    with pytest.raises(Unavailable, match="the engine died"):
        await read(turn, events)
    assert kinds(events) == ["started", "delta"], "a failed turn has no finished"


async def test_tokens_that_come_while_the_reader_is_busy_are_not_lost_to_an_error() -> None:
    turn = begun()
    events = turn.events()
    assert (await anext(events)).HasField("started")
    turn.take(token(1))
    await asyncio.sleep(0)
    assert list((await anext(events)).delta.token_ids) == [1]
    turn.take(token(2))
    await asyncio.sleep(0)
    turn.end(Unavailable("the engine died"))
    assert list((await anext(events)).delta.token_ids) == [2]
    with pytest.raises(Unavailable):
        await anext(events)


async def test_a_reader_that_stalls_ends_the_turn() -> None:
    turn = begun(buffer=4)
    for number in range(4):
        turn.take(token(number))
    await asyncio.sleep(0)
    assert not turn.cancelled.is_set()
    turn.take(token(4))
    await asyncio.sleep(0)
    assert turn.cancelled.is_set(), "the engine is told at once, though nobody reads"
    turn.end(Cancelled("the request was cancelled"))
    events: list[Response] = []
    with pytest.raises(ResourceExhausted, match="4 tokens behind"):
        await read(turn, events)
    assert "finished" not in kinds(events)


async def test_a_caller_that_cancelled_is_not_told_that_it_stalls() -> None:
    turn = running(buffer=1)
    turn.cancel()
    turn.started(STARTED, byte_level())
    for number in range(5):
        turn.take(token(number))
    await asyncio.sleep(0)
    turn.end(Cancelled("the request was cancelled"))
    with pytest.raises(Cancelled):
        await read(turn)
