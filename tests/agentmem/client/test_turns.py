"""Turns of a client through outages: nothing is doubled, nothing is yielded twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentmem import AnswerChanged, AsyncClient, Reasoning, Recalled, Restarted, Text, errors
from agentmem.v1 import agent_pb2, types_pb2
from tests.agentmem.client.test_closing import endless
from tests.gateway.running import eventually
from tests.gateway.scripted import ScriptedWorker, delta, finished, started

AWAY = errors.Unavailable("the worker is starting", 0.05)


def telling(*attempts: list[str | Exception]) -> Callable[[Any], AsyncIterator[Any]]:
    """A script: one list of pieces, or of the error that ends it, for each attempt."""
    left = list(attempts)

    async def tell(_: Any) -> AsyncIterator[Any]:
        yield started()
        for piece in left.pop(0):
            if isinstance(piece, Exception):
                raise piece
            yield delta(piece)
        yield finished()

    return tell


async def test_an_answer(client: AsyncClient, worker: ScriptedWorker) -> None:
    answer = await client.agent("marco").ask("Hi", max_tokens=9)
    assert (str(answer), answer.finish_reason, answer.durable, answer.replayed) == ("Hello 🌍", "stop", True, False)
    assert (answer.memory.match, answer.memory.reused, answer.memory.tiers) == ("extend", 12, {"hot": 7, "warm": 5})
    assert (answer.usage.cached_tokens, answer.usage.completion_tokens) == (12, 3)
    assert (answer.timings.first_token, answer.timings.decode) == (0.12, 0.5)
    assert answer.version is not None
    assert (answer.version.version, len(answer.version.revision)) == (3, 16)
    (request,) = worker.generated
    assert (request.key.agent_id, request.key.model_id, request.max_tokens) == ("marco", "demo", 9)
    assert answer.request_id == request.request_id


async def test_a_broken_stream_goes_on_where_it_was(client: AsyncClient, worker: ScriptedWorker) -> None:
    worker.script = telling(["Hel", AWAY], [AWAY], ["H", "el", "lo"])
    stream = client.agent("marco").stream("Hi")
    assert [piece async for piece in stream] == ["Hel", "lo"]
    assert stream.answer.text == "Hello"
    assert len({request.request_id for request in worker.generated}) == 1
    assert len(worker.generated) == 3


async def test_an_answer_that_comes_out_differently(client: AsyncClient, worker: ScriptedWorker) -> None:
    worker.script = telling(["Hel", AWAY], ["Bye", " now"])
    stream, seen = client.agent("marco").stream("Hi"), list[str]()

    async def read() -> None:
        async for piece in stream:
            seen.append(piece)

    with pytest.raises(AnswerChanged) as raised:
        await read()
    assert seen == ["Hel"]
    assert raised.value.answer.text == stream.answer.text == "Bye now"
    worker.script = telling(["Hel", AWAY], ["Bye"])
    events = [event async for event in client.agent("marco").stream("Hi").events()]
    assert isinstance(events[0], Recalled)
    assert events[1:] == [Text("Hel"), Restarted(), Text("Bye")]
    worker.script = telling(["Hel", AWAY], ["Bye"])
    assert (await client.agent("marco").ask("Hi")).text == "Bye"


async def test_reasoning_comes_apart(client: AsyncClient, worker: ScriptedWorker) -> None:
    async def musing(_: Any) -> AsyncIterator[Any]:
        yield started()
        yield delta("", reasoning="I muse.")
        yield delta("Hello")
        yield finished()

    worker.script = musing
    stream = client.agent("marco").stream("Hi")
    assert [event async for event in stream.events()][1:] == [Reasoning("I muse."), Text("Hello")]
    assert (stream.answer.reasoning, stream.answer.text) == ("I muse.", "Hello")


async def test_a_stream_that_is_left_ends_at_the_server(client: AsyncClient, worker: ScriptedWorker) -> None:
    worker.script = endless
    async with client.agent("marco").stream("Hi") as stream:
        async for _ in stream:
            break
        with pytest.raises(RuntimeError, match="not complete"):
            _ = stream.answer
    await eventually(lambda: worker.running == 0)
    task = asyncio.create_task(client.agent("marco").ask("Hi"))
    await eventually(lambda: worker.running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: worker.running == 0)
    with pytest.raises(errors.DeadlineExceeded, match=r"not done within 0\.2 s"):
        await client.agent("marco").ask("Hi", timeout=0.2)
    await eventually(lambda: worker.running == 0)


async def test_an_outage_is_told_of_once_and_given_up(address: str, worker: ScriptedWorker) -> None:
    told = list[str]()

    async def away(_: Any) -> AsyncIterator[Any]:
        raise AWAY
        yield

    worker.script = away
    async with AsyncClient(address, patience=0.3, on_outage=told.append) as client:
        with pytest.raises(errors.Unavailable, match="is starting"):
            await client.agent("marco", model="demo").ask("Hi")
    assert told == ["the worker is starting"]
    assert len({request.request_id for request in worker.generated}) == 1
    assert len(worker.generated) > 1
    asked = len(worker.generated)
    async with AsyncClient(address, patience=600, timeout=0.3) as client:
        with pytest.raises(errors.DeadlineExceeded, match=r"0\.3 s") as raised:
            await client.agent("marco", model="demo").ask("Hi")
    assert isinstance(raised.value.__cause__, errors.Unavailable)
    assert len(worker.generated) > asked


async def test_what_is_new_ends_an_outage(address: str, worker: ScriptedWorker) -> None:
    """The patience of each is whole, however soon it comes after another."""
    told = list[str]()
    worker.script = telling(["Hel", AWAY], ["Hel", AWAY], ["Hel", "lo", AWAY], ["Hel", "lo", " you"])
    async with AsyncClient(address, on_outage=told.append) as client:
        assert (await client.agent("marco", model="demo").ask("Hi")).text == "Hello you"
    assert len(told) == 2


async def test_telling_is_repeated_under_one_name(client: AsyncClient, worker: ScriptedWorker) -> None:
    await client.agent("marco").info()
    worker.error = AWAY
    task = asyncio.create_task(client.agent("marco").tell("The key is red."))
    await eventually(lambda: len([r for r in worker.requests if hasattr(r, "request_id")]) > 1)
    worker.error = None
    answer = await task
    assert (answer.text, answer.durable) == ("", True)
    assert {r.request_id for r in worker.requests if hasattr(r, "request_id")} == {answer.request_id}


async def test_all_pages_are_listed(client: AsyncClient, worker: ScriptedWorker) -> None:
    names = [f"a{number}" for number in range(5)]
    worker.agents = [agent_pb2.Agent(key=types_pb2.AgentKey(agent_id=name, model_id="demo")) for name in names]
    assert [agent.name async for agent in client.agents()] == names
