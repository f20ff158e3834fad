import asyncio
import logging

import httpx
import pytest

from gateway.http.readiness import HOLDS_SECONDS, Readiness

from ..scripted import ScriptedWorker


class Asked:
    """A worker's word, and how often it was asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.times = 0
        self.word = ""
        self.answers = asyncio.Event()
        self.readiness = Readiness(self.ask, lambda: self.now)

    async def ask(self) -> str:
        self.times += 1
        await self.answers.wait()
        return self.word


async def test_one_question_for_all_who_ask_at_once() -> None:
    asked = Asked()
    asking = [asyncio.create_task(asked.readiness.reason()) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()  # the one who began it
    await asyncio.sleep(0)
    asked.word = "loading"
    asked.answers.set()
    assert await asyncio.gather(*asking[1:]) == ["loading"] * 49
    assert asked.times == 1


async def test_an_answer_holds_for_a_moment_after_it_was_asked_for() -> None:
    asked = Asked()
    asked.answers.set()
    assert await asked.readiness.reason() == ""
    asked.word = "loading"
    asked.now += HOLDS_SECONDS * 0.9
    assert await asked.readiness.reason() == ""
    asked.now += HOLDS_SECONDS * 0.1
    assert await asked.readiness.reason() == "loading"
    assert asked.times == 2


async def test_nobody_waits_for_a_question_that_is_older() -> None:
    asked = Asked()
    old = asyncio.create_task(asked.readiness.reason())
    await asyncio.sleep(0)
    asked.now += HOLDS_SECONDS
    new = asyncio.create_task(asked.readiness.reason())
    await asyncio.sleep(0)
    asked.answers.set()
    assert await asyncio.gather(old, new) == ["", ""]
    assert asked.times == 2


async def test_the_worker_is_not_asked_by_each(
    worker: ScriptedWorker, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "agentmem.traced_calls")
    answers = await asyncio.gather(*(http.get("/readyz") for _ in range(60)))
    assert {answer.status_code for answer in answers} == {200}
    asked = [record for record in caplog.records if "/grpc.health.v1.Health/Check" in str(record.__dict__)]
    assert 1 <= len(asked) < 30
