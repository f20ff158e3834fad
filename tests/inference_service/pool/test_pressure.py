"""A pool while the system is short of memory: it gives back, and grows only for a turn that could not run else."""

import asyncio
from dataclasses import replace

import pytest

from agentmem.errors import ResourceExhausted
from inference_service.pool import admission
from inference_service.pool.growing import Pressure
from tests.inference_service.loop import settle

from .lodging import LONG, Memory, blocks, enter
from .test_growing import BLOCK, Device


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_LOOK_SECONDS", 0.01)


def pressed(device: Device, pressure: Pressure) -> None:
    device.memory.admission.pressure = lambda: pressure


async def agents(names: str) -> Device:
    """Each has a segment of two blocks; that of the first is open always."""
    device = Device(100 * BLOCK)
    for number, name in enumerate(names):
        await device.agent(name, 10 * number, 10 * number + 1)
    return device


@pytest.mark.parametrize(
    ("level", "pressure"),
    [
        *((0, Pressure.NORMAL), (1, Pressure.NORMAL), (2, Pressure.WARNING), (3, Pressure.WARNING)),
        *((4, Pressure.CRITICAL), (9, Pressure.CRITICAL)),
    ],
)
def test_levels_of_the_system(level: int, pressure: Pressure) -> None:
    assert Pressure.of(level) is pressure


@pytest.mark.parametrize(("pressure", "left"), [(Pressure.WARNING, "acde"), (Pressure.CRITICAL, "ade")])
async def test_agents_that_are_idle_longest_give_back_so_much(pressure: Pressure, left: str) -> None:
    device = await agents("abcde")
    device.memory.admission.growth.yield_to(pressure, 16 * BLOCK)
    assert device.memory.agents == left, "the first segment stays, and who is in it"
    assert device.memory.evicted == [1] * (5 - len(left))
    device.memory.check()


async def test_what_runs_stays() -> None:
    device = await agents("a")
    running = await device.memory.admission.reserve(blocks(4), 0)
    device.memory.admission.growth.yield_to(Pressure.CRITICAL, 100 * BLOCK)
    assert (device.open_blocks, device.memory.agents, device.closed) == (6, "a", [])
    device.memory.admission.release(running)
    device.memory.admission.growth.yield_to(Pressure.CRITICAL, 100 * BLOCK)
    assert device.open_blocks == 2, "free segments go at once"


async def test_agents_go_rather_than_the_pool_grows() -> None:
    device = await agents("ab")
    pressed(device, Pressure.WARNING)
    await device.agent("c", 30, 31)
    assert (device.open_blocks, device.memory.agents) == (4, "bc")


async def test_under_a_warning_a_turn_that_is_alone_gets_what_it_needs() -> None:
    device = await agents("a")
    pressed(device, Pressure.WARNING)
    assert device.memory.admission.reserve_now(replace(blocks(5), computes=False)) is None, "not a prefetch"
    room = await device.memory.admission.reserve(blocks(5), 0)
    assert device.open_blocks == 8, "no more"
    waiting = enter(device.memory, blocks(4), LONG)
    await settle()
    assert not waiting.done(), "not beside another"
    pressed(device, Pressure.NORMAL)
    device.memory.admission.release(await asyncio.wait_for(waiting, 30))
    device.memory.admission.release(room)


async def test_at_critical_a_turn_waits_until_the_pool_may_grow() -> None:
    device = await agents("a")
    pressed(device, Pressure.CRITICAL)
    with pytest.raises(ResourceExhausted, match=r"the system is short of memory \(critical\).*end other processes"):
        await device.memory.admission.reserve(blocks(3), 0)
    assert device.open_blocks == 2
    waiting = enter(device.memory, blocks(3), LONG)
    await settle()
    assert not waiting.done()
    pressed(device, Pressure.NORMAL)
    device.memory.admission.release(await asyncio.wait_for(waiting, 30))


@pytest.mark.parametrize(("pressure", "granted"), [(Pressure.WARNING, 512), (Pressure.CRITICAL, 0)])
async def test_at_critical_turns_go_without_arrays(pressure: Pressure, granted: int) -> None:
    memory = Memory(10, arrays=5000)
    memory.admission.pressure = lambda: pressure
    room = await memory.admission.reserve(blocks(2), 0)
    assert room.array_bytes == granted


async def test_a_pool_that_is_whole_refuses_in_words_about_turns() -> None:
    device = await agents("abcde")
    room = await device.memory.admission.reserve(blocks(9), 0)
    pressed(device, Pressure.CRITICAL)
    with pytest.raises(ResourceExhausted, match="running requests have all the memory"):
        await device.memory.admission.reserve(blocks(3), 0)
    device.memory.admission.release(room)
