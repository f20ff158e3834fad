"""The engine thread: order, errors, bounds, and what its death means."""

import asyncio
import threading

import pytest

from agentmem.errors import ResourceExhausted, Unavailable
from inference_service.engine.thread import EngineThread


async def test_runs_in_order_on_one_thread() -> None:
    engine = EngineThread()
    engine.start()
    seen: list[int] = []
    names = await asyncio.gather(
        *(engine.submit(lambda n=n: (seen.append(n), threading.current_thread().name)[1]) for n in range(20))
    )
    assert seen == list(range(20))
    assert set(names) == {"engine"}
    await engine.stop()
    assert not engine.alive


async def test_an_exception_is_its_callers() -> None:
    engine = EngineThread()
    engine.start()
    with pytest.raises(ZeroDivisionError):
        await engine.call(lambda: 1 // 0)
    assert await engine.call(lambda: 7) == 7
    await engine.stop()


async def test_too_many_waiting_are_refused() -> None:
    engine = EngineThread(max_waiting=2)
    engine.start()
    gate = threading.Event()
    first, second = engine.submit(gate.wait), engine.submit(lambda: 2)
    with pytest.raises(ResourceExhausted) as refused:
        engine.submit(lambda: 3)
    assert refused.value.retry_after > 0
    gate.set()
    await asyncio.gather(first, second)
    assert await engine.submit(lambda: 4) == 4
    await engine.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_death_fails_what_waits_and_what_comes() -> None:
    engine = EngineThread()
    engine.start()

    def die() -> None:
        raise SystemExit

    running, waiting = engine.submit(die), engine.submit(lambda: 1)
    for future in (running, waiting):
        with pytest.raises(Unavailable):
            await asyncio.wait_for(future, 5)
    assert engine.died.is_set()
    assert not engine.alive
    with pytest.raises(Unavailable):
        engine.submit(lambda: 1)
