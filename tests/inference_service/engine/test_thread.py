"""The engine thread: order, errors, bounds, and what its death means."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from agentmem.errors import Unavailable
from inference_service.engine import pausing, thread
from inference_service.engine.pausing import let_others_run
from inference_service.engine.thread import EngineThread


async def test_runs_in_order_on_one_thread() -> None:
    engine = EngineThread()
    engine.start()
    seen: list[int] = []
    names = await asyncio.gather(
        *(engine.call(lambda n=n: (seen.append(n), threading.current_thread().name)[1]) for n in range(20))
    )
    assert seen == list(range(20))
    assert set(names) == {"engine"}
    await engine.stop(10)
    assert not engine.alive


async def test_what_a_step_tells_is_heard_in_order_and_before_what_it_resolves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = EngineThread()
    engine.start()
    heard: list[int] = []
    said: Future[None] = Future()
    flushed, gate = threading.Event(), threading.Event()

    def tell() -> None:
        for number in range(50):
            engine.tell((lambda: heard.append(1 // 0)) if number == 7 else partial(heard.append, number))
        assert not heard
        engine.tell(flushed.set)
        engine.flush()
        assert flushed.wait(30)
        engine.tell(heard.append, 50)
        said.set_result(None)
        gate.wait(30)  # The step has not ended, and what it told last is not flushed.

    engine.submit(tell)
    await engine.wait(said)
    assert heard == [*range(7), *range(8, 51)]
    gate.set()
    assert [each.exc_info and each.exc_info[0] for each in caplog.records] == [ZeroDivisionError]
    engine.attach(lambda: bool(engine.tell(heard.append, 51)))
    await engine.call(lambda: None)
    await engine.call(lambda: None)
    assert 51 in heard
    await engine.stop(10)


@pytest.mark.parametrize(("seconds", "wakes"), [(0.0, 3), (3600.0, 2)])
async def test_steps_that_follow_each_other_wake_the_event_loop_together(
    seconds: float, wakes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waking it takes the interpreter from the engine. The last step's messages wait for no other."""
    monkeypatch.setattr(thread, "_TOGETHER_SECONDS", seconds)
    engine, loop, heard = EngineThread(), asyncio.get_running_loop(), list[int]()
    engine.start()
    woken, wake, done = [0], loop.call_soon_threadsafe, asyncio.Event()

    def counted(callback: Callable[..., object], *of: Any, **options: Any) -> asyncio.Handle:
        woken[0] += threading.current_thread().name == "engine"
        return wake(callback, *of, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    left = list(range(3))

    def step() -> bool:
        for number in range(8):
            engine.tell(heard.append, number)
        if not left.pop():
            engine.tell(done.set)
        return bool(left)

    engine.attach(step)
    engine.begin(lambda: None, Future())
    async with asyncio.timeout(10):
        await done.wait()
    assert heard == [*range(8)] * 3 and woken == [wakes]
    await engine.stop(10)


async def test_what_waits_can_be_cancelled_and_what_runs_cannot() -> None:
    engine = EngineThread()
    engine.start()
    gate, started = threading.Event(), threading.Event()
    running = engine.submit(lambda: (started.set(), gate.wait()))
    ran: list[int] = []
    waiting = engine.submit(lambda: ran.append(1))
    await asyncio.to_thread(started.wait)
    assert waiting.cancel()
    assert not running.cancel()
    gate.set()
    await engine.wait(running)
    await engine.wait(waiting)
    assert waiting.cancelled()
    assert await engine.call(lambda: 4) == 4
    assert not ran
    await engine.stop(10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_death_fails_what_waits_and_what_comes() -> None:
    engine = EngineThread()
    engine.start()

    def die() -> None:
        raise SystemExit

    running, waiting = engine.submit(die), engine.submit(lambda: 1)
    for future in (running, waiting):
        with pytest.raises(Unavailable):
            await asyncio.wait_for(asyncio.wrap_future(future), 30)
    assert engine.died.is_set()
    assert not engine.alive
    with pytest.raises(Unavailable):
        engine.submit(lambda: 1)


@pytest.mark.parametrize("where", ["a function", "a step"])
async def test_a_lost_device_ends_it_and_says_so_to_all(where: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = EngineThread()
    engine.start()
    told: Future[None] = Future()

    def fail() -> bool:
        raise RuntimeError("[METAL] Command buffer execution failed: Hang (00000003)")

    engine.begin(lambda: None, told)
    running = engine.submit(fail if where == "a function" else partial(engine.attach, fail))
    waiting = engine.submit(lambda: 1)
    for future in (running, waiting, told) if where == "a function" else (told,):
        with pytest.raises(Unavailable, match=r"the GPU failed \(.*Hang.*what was committed is kept") as caught:
            await asyncio.wait_for(asyncio.wrap_future(future), 30)
        assert caught.value.retry_after > 0
    assert engine.lost.endswith("Hang (00000003)") and not engine.alive
    for refused in (engine.check, lambda: engine.submit(lambda: 1)):
        with pytest.raises(Unavailable, match="the GPU failed"):
            refused()
    assert [record.message for record in caplog.records] == ["the GPU failed"]


@pytest.mark.parametrize("late", [False, True], ids=["others", "metal"])
async def test_metal_is_asked_before_what_it_computed_is_taken_for_right(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineThread()
    engine.start()
    asked: list[str] = []

    def ask() -> None:
        asked.append(threading.current_thread().name)
        raise RuntimeError("[METAL] Command buffer execution failed: Hang (00000003)")

    monkeypatch.setattr(thread, "on_metal", lambda: late)
    monkeypatch.setattr(thread.lost_device, "ask", ask)
    if late:
        with pytest.raises(Unavailable, match="the GPU failed"):
            await engine.confirm()
    else:
        await engine.confirm()
    assert asked == ["engine"] * late
    await engine.stop(10)


async def test_a_long_function_lets_others_run_in_its_pauses() -> None:
    engine = EngineThread()
    engine.start()
    seen: list[str] = []
    gate, started = threading.Event(), threading.Event()

    def other() -> None:
        seen.append("other")
        let_others_run()  # in a pause: there is none in a pause

    def long() -> None:
        started.set()
        gate.wait()
        seen.append("begins")
        let_others_run()
        seen.append("ends")

    def step() -> bool:
        seen.append("step")
        return False

    running = engine.submit(long)
    await asyncio.to_thread(started.wait)
    engine.attach(step)
    others = [engine.submit(other), engine.submit(lambda: 1 // 0)]
    gate.set()
    await engine.wait(running)
    assert seen[:4] == ["begins", "other", "step", "ends"]
    for each in others:
        await engine.wait(each)
    assert isinstance(others[1].exception(), ZeroDivisionError)
    await engine.stop(10)


async def test_the_thread_ends_in_a_pause_of_a_long_function() -> None:
    engine = EngineThread()
    engine.start()
    started = threading.Event()

    def endless() -> None:
        while True:
            started.set()
            let_others_run()

    running = engine.submit(endless)
    await asyncio.to_thread(started.wait)
    await engine.stop(10)
    assert not engine.alive
    assert isinstance(running.exception(), Unavailable)


def test_the_clock_of_work_stands_still_in_its_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pausing.time, "monotonic", lambda: now[0])
    began = pausing.work_clock()
    now[0] += 1
    pausing.pause_for(lambda: now.__setitem__(0, now[0] + 10))
    try:
        let_others_run()
    finally:
        pausing.pause_for(lambda: None)
    now[0] += 2
    assert pausing.work_clock() - began == 3
