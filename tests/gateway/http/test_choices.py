"""The turns of one request before a scripted worker: one that fails fails them all, whatever the others have said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from agentmem import errors
from agentmem.v1 import inference_pb2, types_pb2
from gateway.http.turns import Events, each_choice
from gateway.running import RunningTurns
from tests.gateway.fakes import FakeWorker
from tests.gateway.running import eventually
from tests.gateway.scripted import delta, finished, started


def turn(prompt: str, agent: str = "") -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(key=types_pb2.AgentKey(agent_id=agent, model_id="demo"), prompt=prompt)


async def by_prompt(request: inference_pb2.GenerateRequest) -> AsyncIterator[Any]:
    yield started()
    if request.prompt == "fails":
        raise errors.Unavailable("the engine died")
    for _ in range(50):
        yield delta(request.prompt)
    if request.prompt == "endless":
        await asyncio.Event().wait()
    if request.prompt != "unfinished":
        yield finished()


class ByPrompt(FakeWorker):
    running = 0

    async def Generate(self, request: inference_pb2.GenerateRequest) -> AsyncIterator[Any]:
        self.running += 1
        try:
            async for event in by_prompt(request):
                await asyncio.sleep(0)
                yield event
        finally:
            self.running -= 1


@pytest.fixture
def worker() -> ByPrompt:
    return ByPrompt()


@pytest.fixture
def running(worker: ByPrompt) -> RunningTurns:
    return RunningTurns(worker)


async def read(events: Events, pause: float) -> None:
    async for _ in events:
        await asyncio.sleep(pause)


@pytest.mark.parametrize("bad", ["fails", "unfinished"])
@pytest.mark.parametrize("slow", [True, False])
async def test_one_that_fails_fails_the_request(running: RunningTurns, bad: str, slow: bool) -> None:
    for turns in ([turn(bad), turn("good")], [turn("good"), turn(bad)], [turn(bad)], [turn("x", "a"), turn(bad)]):
        with pytest.raises(errors.Unavailable):
            await read(each_choice(running, turns), 0.002 if slow else 0)


async def test_each_event_has_its_choice_and_the_agents_own_comes_first(worker: ByPrompt) -> None:
    for agent in ("", "a"):
        turns = [turn(text, agent if not number else "") for number, text in enumerate("xyz")]
        told = [one async for one in each_choice(worker, turns)]
        for number, text in enumerate("xyz"):
            assert "".join(event.delta.text for choice, event in told if choice == number) == text * 50
        if agent:
            assert [choice for choice, _ in told][:52] == [0] * 52


async def test_leaving_cancels_all(worker: ByPrompt) -> None:
    async with aclosing(each_choice(worker, [turn("endless")] * 3)) as choices:
        async for _ in choices:
            if worker.running == 3:
                break
        await choices.aclose()
        left = [task for task in asyncio.all_tasks() if "_merged" in repr(task)]
        assert not left, "all has ended with the iterator, and not when somebody collects it"
    await eventually(lambda: worker.running == 0)


async def test_who_leaves_while_choices_are_awaited_leaves_nothing_behind(worker: ByPrompt) -> None:
    before = asyncio.all_tasks()
    seen: list[int] = []

    async def reads() -> None:
        async with aclosing(each_choice(worker, [turn("endless")] * 2)) as choices:
            async for choice, _ in choices:
                seen.append(choice)

    reading = asyncio.create_task(reads())
    await eventually(lambda: len(seen) == 2 * 51)
    reading.cancel()
    await asyncio.wait({reading})
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - before
    assert not [task for task in left if "Queue" in repr(task)], left
    await eventually(lambda: worker.running == 0)


@pytest.mark.parametrize("ticks", range(6))
async def test_leaving_ends_while_a_failed_choice_waits_for_room(
    ticks: int, worker: ByPrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = asyncio.Event()

    async def turn_on(request: inference_pb2.GenerateRequest) -> AsyncIterator[Any]:
        if request.prompt == "fails":
            await fails.wait()
            raise errors.Unavailable("the engine died")
        while True:
            yield delta(request.prompt)

    monkeypatch.setattr(worker, "stream", turn_on)
    events = each_choice(worker, [turn("talks"), turn("fails")])
    await anext(events)
    await asyncio.sleep(0)  # the queue is full
    fails.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    await asyncio.wait_for(events.aclose(), 5)
