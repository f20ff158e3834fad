"""Scenarios run with faults: in a child process whose stores share one shim, one slot and one directory each.

Starting the process takes longer than many a scenario, so a group of them shares it, unless all points are tested.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.tiers.limits import DiskLimits
from tests import scratch
from tests.faults.shim import VERBS, Action, Control, Kind, Slot
from tests.faults.victims import Victim, Victims, victims
from tests.full_matrix import FULL

from .conftest import fails, running
from .invariants import View, view
from .scenarios import ROOMY, Scenario, Store, furnish

PATIENCE = 60.0
_AT_ONCE = 1 if FULL else 4


@dataclass
class Bench:
    folder: Path
    control: Control
    child: Victims
    scenario: Scenario
    template: Path
    slots: Iterator[int] = field(default_factory=count)
    """Numbers that no store of the child has yet."""

    @property
    def limits(self) -> DiskLimits:
        return self.scenario.limits(self.template)

    def lay_out(self, number: int) -> Path:
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
        return (self.folder / "log").read_text(errors="replace")


@asynccontextmanager
async def bench(library: Path, template: Path, scenario: Scenario, *mistakes: str) -> AsyncIterator[Bench]:
    folder = Path(tempfile.mkdtemp(dir=scratch.FOLDER, prefix="am"))
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


def groups(scenarios: Iterable[Scenario]) -> list[tuple[Scenario, ...]]:
    """Scenarios that share a child process."""
    by_flags: dict[tuple[str, ...], list[Scenario]] = {}
    for scenario in scenarios:
        by_flags.setdefault(scenario.flags, []).append(scenario)
    return [
        tuple(same[first : first + _AT_ONCE]) for same in by_flags.values() for first in range(0, len(same), _AT_ONCE)
    ]


def name_of(group: tuple[Scenario, ...]) -> str:
    return ", ".join(scenario.name for scenario in group)


async def undisturbed(bench: Bench) -> Course:
    number = next(bench.slots)
    scenario, slot = bench.scenario, bench.control[number]
    if scenario.act is None:
        data = bench.lay_out(number)
        slot.arm()
        assert await bench.child.open(number, data, bench.limits) == ""
        victim = bench.child.victim(number, data)
        after = await view(victim)
        return Course(slot.operations(), after, after)
    victim = await bench.opened(number)
    before = None if scenario.vanished else await view(victim)
    slot.arm()
    await scenario.act(victim)
    await settled(victim)
    await written(victim)
    operations = slot.operations()
    slot.disarm()
    after = await view(victim)
    return Course(operations, before or after, after)


async def settled(store: Store) -> None:
    """Wait until files that nobody needs any more are gone."""
    await store.cache.StageBlocks(pb.StageBlocksRequest(namespace="default"))


async def written(store: Store) -> None:
    """Wait until the writer of the ledger has done what is queued, also where it has been acknowledged too early.

    A write of an agent that is not there waits for its turn, and changes no file.
    """
    nobody = types_pb2.AgentKey(namespace="default", agent_id="nobody", model_id="none")
    await fails(store.agents.PinAgent(agent_pb2.PinAgentRequest(key=nobody)), "NOT_FOUND")


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


def points(
    operations: list[str], seed: str, kinds: Kind = Kind.ALL, half: int | None = None, every: bool = False
) -> list[int]:
    """Which operations to test: `every` one, or one of each kind (two of many), drawn by `seed`, and the last.

    Operations are counted as a slot that is armed for `kinds` counts them. `half` 0 or 1: of those that are drawn
    every second one, where two ways of testing share them; which half a kind is in is drawn by `seed`, too.

    What is between two pages that one transaction writes is always the same, a part of a transaction, and a second file
    goes the way of the first.
    """
    counted = [operation for operation in operations if VERBS[operation.partition(" ")[0]] & kinds]
    numbers = list(range(1, len(counted) + 1))
    if FULL or every:
        return numbers
    drawn = _one_of_each_kind(counted, random.Random(seed))
    return sorted({*(drawn if half is None else drawn[half::2]), *numbers[-1:]})


def _one_of_each_kind(operations: list[str], dice: random.Random) -> list[int]:
    kinds: dict[str, list[int]] = {}
    for number, operation in enumerate(operations, start=1):
        kinds.setdefault(kind(operation), []).append(number)
    drawn = [number for numbers in kinds.values() for number in dice.sample(numbers, 2 if len(numbers) > 8 else 1)]
    dice.shuffle(drawn)
    return drawn


def kind(operation: str) -> str:
    """An operation without what differs from file to file, and from run to run: what it does, and to which of its kin.

    >>> kind("mkdir /tmp/am7w/0/d/blocks/29"), kind("unlink 3b4ccdec098a-56fa6298.safetensors")
    ('mkdir blocks/*', 'unlink *-*.safetensors')
    """
    verb, _, path = operation.partition(" ")
    return f"{verb} {_NAMES.sub('*', _DIRECTORY.sub('', path))}"


_DIRECTORY = re.compile(r"^.*/\d+/d(/|$)")
_NAMES = re.compile(r"[0-9a-f]{8,}|(?<=/)[0-9a-f]{2}$")


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp(dir=scratch.FOLDER, prefix="am"))

    async def make() -> None:
        async with running(parent / "d", ROOMY) as store:
            await furnish(store)

    asyncio.run(make())
    for leftover in (parent / "d").glob("store.sock*"):
        leftover.unlink()
    yield parent / "d"
    shutil.rmtree(parent)


STOPS = (Action.STOP_BEFORE, Action.STOP_AFTER)
