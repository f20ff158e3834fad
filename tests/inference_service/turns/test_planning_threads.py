import asyncio
import threading

import pytest

from inference_service.domain import AppendInput, MessagesInput, TextInput, TokensInput
from inference_service.turns.planning_threads import LARGE, PlanningThreads, characters

LONG = TextInput("x" * LARGE)


async def test_large_inputs_are_planned_one_at_a_time() -> None:
    threads, going, most = PlanningThreads(), 0, 0

    def work() -> None:
        nonlocal going, most
        going += 1
        most = max(most, going)
        threading.Event().wait(0.02)
        going -= 1

    await asyncio.gather(*(threads.run(LONG, work) for _ in range(4)))
    assert most == 1


async def test_a_caller_that_leaves_lets_no_other_in_before_its_work_has_ended() -> None:
    threads, entered, may_end = PlanningThreads(), threading.Event(), threading.Event()
    order = []

    def first() -> None:
        entered.set()
        may_end.wait(30)
        order.append("first")

    left = asyncio.create_task(threads.run(LONG, first))
    await asyncio.to_thread(entered.wait, 30)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    second = asyncio.create_task(threads.run(LONG, lambda: order.append("second")))
    await threads.run(TextInput("short"), lambda: order.append("short"))
    may_end.set()
    await second
    assert order == ["short", "first", "second"]


def test_characters_are_those_of_all_strings() -> None:
    chat = MessagesInput(({"role": "user", "content": "abc"},), ({"function": {"name": ["f", 1, None]}},), {"x": "yz"})
    assert characters(chat) == characters(AppendInput(chat)) == len("roleusercontentabcfunctionnamefxyz")
    assert characters(AppendInput(TextInput("abc"))) == 3
    assert characters(TokensInput((1, 2))) == 0
