import asyncio
import threading

import pytest

from inference_service.domain import AppendInput, MessagesInput, TextInput, TokensInput
from inference_service.threads import LARGE, WorkerThreads, characters

LONG = TextInput("x" * LARGE)


async def test_large_inputs_are_planned_one_at_a_time() -> None:
    threads, going, most = WorkerThreads(), 0, 0

    def work() -> None:
        nonlocal going, most
        going += 1
        most = max(most, going)
        threading.Event().wait(0.02)
        going -= 1

    await asyncio.gather(*(threads.plan_input(LONG, work) for _ in range(4)))
    assert most == 1


async def test_a_caller_that_leaves_lets_no_other_in_before_its_work_has_ended() -> None:
    threads, entered, may_end = WorkerThreads(), threading.Event(), threading.Event()
    order = []

    def first() -> None:
        entered.set()
        may_end.wait(30)
        order.append("first")

    left = asyncio.create_task(threads.plan_input(LONG, first))
    await asyncio.to_thread(entered.wait, 30)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    second = asyncio.create_task(threads.plan_input(LONG, lambda: order.append("second")))
    await threads.plan_input(TextInput("short"), lambda: order.append("short"))
    may_end.set()
    await second
    assert order == ["short", "first", "second"]


def test_characters_are_those_of_all_strings() -> None:
    chat = MessagesInput(({"role": "user", "content": "abc"},), ({"function": {"name": ["f", 1, None]}},), {"x": "yz"})
    assert characters(chat) == characters(AppendInput(chat)) == len("roleusercontentabcfunctionnamefxyz")
    assert characters(AppendInput(TextInput("abc"))) == 3
    assert characters(TokensInput((1, 2))) == 0


async def test_each_kind_of_work_has_its_own_threads() -> None:
    """A request is parsed, and a file read, while all of planning is busy."""
    threads, may_end = WorkerThreads(), threading.Event()
    threads.install()
    busy = [asyncio.create_task(threads.plan(lambda: may_end.wait(30))) for _ in range(20)]
    try:
        async with asyncio.timeout(10):
            names = [
                await threads.parse(lambda: threading.current_thread().name),
                await asyncio.to_thread(lambda: threading.current_thread().name),
                await threads.compile(lambda: threading.current_thread().name),
                await threads.plan(lambda: threading.current_thread().name, tokens=7),
            ]
    finally:
        may_end.set()
    assert [name.split("_")[0] for name in names] == ["requests", "files", "grammar", "MainThread"]
    await asyncio.gather(*busy)
    threads.close()
    with pytest.raises(RuntimeError):
        await threads.parse(int)
