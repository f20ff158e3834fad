import asyncio
import gc

import pytest

from agentmem.validation import AgentKey
from inference_service.turns.locks import AgentLocks
from tests.inference_service.loop import settle

A, B = AgentKey("ns", "a", "m"), AgentKey("ns", "b", "m")


def held(locks: AgentLocks) -> int:
    return len(locks._locks)


async def turn(locks: AgentLocks, log: list[str], name: str) -> None:
    async with locks.hold(A):
        log.append(name)


async def test_one_at_a_time_in_the_order_of_arrival() -> None:
    locks, log, inside = AgentLocks(), [], 0

    async def turn(number: int) -> None:
        nonlocal inside
        async with locks.hold(A):
            inside += 1
            assert inside == 1
            log.append(number)
            await settle()
            inside -= 1

    tasks = []
    for number in range(10):
        tasks.append(asyncio.create_task(turn(number)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert log == list(range(10))
    assert held(locks) == 0


async def test_a_waiter_that_gives_up_leaves_nothing() -> None:
    locks, log = AgentLocks(), []

    async with locks.hold(A):
        gives_up = asyncio.create_task(turn(locks, log, "gives up"))
        stays = asyncio.create_task(turn(locks, log, "stays"))
        await settle()
        gives_up.cancel()
        await settle()
        assert gives_up.cancelled()
        assert log == []
    await stays
    assert log == ["stays"]


async def test_a_waiter_that_is_cancelled_as_it_gets_the_lock() -> None:
    locks, log = AgentLocks(), []

    async with locks.hold(A):
        woken = asyncio.create_task(turn(locks, log, "woken"))
        next_one = asyncio.create_task(turn(locks, log, "next"))
        await settle()
    woken.cancel()
    with pytest.raises(asyncio.CancelledError):
        await woken
    await next_one
    assert log == ["next"]


async def test_many_agents_leave_no_lock_objects() -> None:
    locks = AgentLocks()
    gc.collect()
    before = sum(isinstance(thing, asyncio.Lock) for thing in gc.get_objects())
    for number in range(100):
        async with locks.hold(A._replace(agent_id=str(number))):
            pass
    gc.collect()
    assert held(locks) == 0
    assert sum(isinstance(thing, asyncio.Lock) for thing in gc.get_objects()) <= before
