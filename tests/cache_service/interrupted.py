"""Scenarios run with faults: in a child process whose stores share one shim, one slot and one directory each."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from agentmem.v1 import cache_store_pb2 as pb
from cache_service.limits import Limits
from tests.faults.shim import Action, Control, Slot
from tests.faults.victims import Victim, Victims, victims
from tests.full_matrix import FULL

from .conftest import running
from .invariants import View, view
from .scenarios import ROOMY, Scenario, Store, furnish

PATIENCE = 60.0


@dataclass
class Bench:
    """The child process, and where its directories are."""

    folder: Path
    control: Control
    child: Victims
    scenario: Scenario
    template: Path

    @property
    def limits(self) -> Limits:
        """The limits of the stores."""
        return self.scenario.limits(self.template)

    def lay_out(self, number: int) -> Path:
        """A fresh data directory for a slot."""
        data = self.folder / str(number) / "d"
        shutil.copytree(self.template, data)
        self.scenario.litter(data)
        return data

    async def opened(self, number: int) -> Victim:
        """A store on a fresh directory, prepared for the scenario's call."""
        data = self.lay_out(number)
        assert await self.child.open(number, data, self.limits) == ""
        victim = self.child.victim(number, data)
        await self.scenario.prepare(victim)
        return victim

    async def begin(self, number: int) -> tuple[Path, Awaitable[object]]:
        """The scenario's call, or the start itself, ready to be made after the slot is armed; and the directory."""
        if self.scenario.act is None:
            data = self.lay_out(number)
            return data, self.child.open(number, data, self.limits)
        victim = await self.opened(number)
        return victim.data, self.scenario.act(victim)

    def log(self) -> str:
        """What the stores have logged."""
        return (self.folder / "log").read_text(errors="replace")


@asynccontextmanager
async def bench(library: Path, template: Path, scenario: Scenario, *mistakes: str) -> AsyncIterator[Bench]:
    """A child process for one scenario; it is dead in the end, and the directories are gone."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="am"))
    try:
        control = Control(folder / "control", folder)
        async with victims(control, library, *scenario.flags, *mistakes) as child:
            yield Bench(folder, control, child, scenario, template)
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Course:
    """How a scenario goes without faults: its operations on files, and what readers see before and after it."""

    operations: list[str]
    before: View
    after: View


async def undisturbed(bench: Bench) -> Course:
    """Run the scenario in slot 0 and count."""
    scenario, slot = bench.scenario, bench.control[0]
    if scenario.act is None:
        data = bench.lay_out(0)
        slot.arm()
        assert await bench.child.open(0, data, bench.limits) == ""
        victim = bench.child.victim(0, data)
        after = await view(victim)
        return Course(slot.operations(), after, after)
    victim = await bench.opened(0)
    before = None if scenario.vanished else await view(victim)
    slot.arm()
    await scenario.act(victim)
    await settled(victim)
    count = slot.operations()
    slot.disarm()
    after = await view(victim)
    return Course(count, before or after, after)


async def settled(store: Store) -> None:
    """Wait until files that nobody needs any more are gone."""
    await store.cache.StageBlocks(pb.StageBlocksRequest(namespace="default"))


async def until_stopped(call: Awaitable[object], slot: Slot) -> bool:
    """Wait for a call, or for the shim to stop its store; whether it was answered. Raises what the call raises."""
    task = asyncio.ensure_future(call)
    async with asyncio.timeout(PATIENCE):
        while not task.done() and not slot.stopped:
            await asyncio.sleep(0.001)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait([task])
    return False


def points(operations: list[str], per_operation: int) -> list[tuple[int, int]]:
    """Which (operation, fault) to test: all, or of each run of equal operations its first, its middle and its last.

    Most runs are the pages that one transaction writes, and what is between two of them is always the same: a part of
    a transaction.
    """
    chosen: list[int] = []
    for _, run in groupby(range(1, len(operations) + 1), key=lambda number: operations[number - 1]):
        numbers = list(run)
        chosen += numbers if FULL else sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]})
    return [(number, fault) for number in chosen for fault in range(per_operation)]


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """A data directory in which there is something of everything, closed in order."""
    parent = Path(tempfile.mkdtemp(dir="/tmp", prefix="am"))

    async def make() -> None:
        async with running(parent / "d", ROOMY) as store:
            await furnish(store)

    asyncio.run(make())
    for leftover in (parent / "d").glob("store.sock*"):
        leftover.unlink()
    yield parent / "d"
    shutil.rmtree(parent)


STOPS = (Action.STOP_BEFORE, Action.STOP_AFTER)
