"""SIGKILL before and after every change of a file that a call makes: all of it is there afterwards, or nothing.

The child process runs the real store; shim.c counts its operations on files and holds it at one of them, until the
whole process is killed. With AGENTMEM_FULL_MATRIX=1 that is before and after every operation, else before or after one
of each kind, and both of the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from cache_service.tiers.limits import DiskLimits

from .conftest import running
from .interrupted import (
    STOPS,
    Bench,
    Course,
    bench,
    groups,
    name_of,
    points,
    settled,
    template,
    undisturbed,
    until_stopped,
)
from .invariants import View, check_directory, expect, files, holds, view
from .scenarios import SCENARIOS, Scenario

__all__ = ["template"]
DATABASES = ("store.db", "warm.db")
"""Readers may have to wait for what a stopped store has of them."""


class Stopped(NamedTuple):
    """A store at its last point; `problem` is what who reads in this moment finds wrong."""

    scenario: Scenario
    course: Course
    allowed: Sequence[View]
    number: int
    data: Path
    answered: bool
    where: str
    problem: str


async def stop_everywhere(bench: Bench, every: bool) -> list[Stopped]:
    """A store for each point, stopped there; with `every`, none is left out."""
    scenario, course = bench.scenario, await undisturbed(bench)
    assert len(course.operations) > 0
    allowed = [course.before, course.after]
    if scenario.room is not None:
        allowed.append(await without_limits(bench))
    stopped = []
    stops = [
        (operation, stop)
        for half, stop in enumerate(STOPS)
        for operation in points(course.operations, scenario.name, half=half, every=every)
    ]
    for operation, stop in stops:
        number = next(bench.slots)
        slot = bench.control[number]
        data, call = await bench.begin(number)
        slot.arm(stop, operation)
        answered = await until_stopped(call, slot)
        victim = bench.child.victim(number, data)
        if answered and scenario.act is not None:
            await until_stopped(settled(victim), slot)
        where = f"{scenario.name}, {stop.name.lower()} {operation} ({(slot.operations() or ['?'])[-1]})"
        problem = ""
        if slot.stopped and scenario.act is not None and not any(each in where for each in DATABASES):
            try:
                await files(victim)
            except AssertionError as error:
                problem = f"{where}, a reader in this moment: {error}"
        stopped.append(Stopped(scenario, course, allowed, number, data, answered, where, problem))
    return stopped


async def check(stopped: Stopped, limits: DiskLimits) -> None:
    """Start again: what was acknowledged is there, the rest wholly or not at all, nothing leaks, and work goes on."""
    scenario, course, data = stopped.scenario, stopped.course, stopped.data
    async with running(data, limits) as store:
        found = await view(store)
        expect(found, [course.after] if stopped.answered else stopped.allowed)
        check_directory(store)
        if scenario.erases and found == course.after:
            assert holds(data, scenario.erases) == [], "erased, but still in a file"
        if scenario.act is None:
            return
        try:
            await scenario.act(store)
        except grpc.aio.AioRpcError as error:
            if error.code() is not scenario.again or found == course.before:
                raise
        await settled(store)
        found = await view(store)
        expect(found, [course.after])
        check_directory(store)


async def explore(
    library: Path,
    template: Path,
    group: Sequence[Scenario],
    *mistakes: str,
    enough: int | None = None,
    every: bool = False,
) -> tuple[Counter[str], list[str]]:
    """Kill stores at every point of some scenarios: how many points of each, and what was wrong, `enough` of it."""
    async with bench(library, template, group[0], *mistakes) as shared:
        stopped = []
        for scenario in group:
            stopped += await stop_everywhere(replace(shared, scenario=scenario), every)
        await shared.child.kill()
        problems = [each.problem for each in stopped if each.problem]
        for each in stopped:
            if len(problems) == enough:
                break
            shared.control[each.number].disarm()
            try:
                await check(each, each.scenario.limits(template))
            except Exception as error:  # noqa: BLE001 - collected, so that the report has every point
                answered = "answered" if each.answered else "not answered"
                problems.append(f"{each.where}, {answered}: {type(error).__name__} {error}")
        return Counter(each.scenario.name for each in stopped), problems


async def without_limits(bench: Bench) -> View:
    """Return the view between a publication and the eviction that follows it."""
    roomy = Scenario(bench.scenario.name, bench.scenario.act, bench.scenario.prepare)
    return (await undisturbed(replace(bench, scenario=roomy))).after


@pytest.mark.essential("the store survives SIGKILL at any change of a file")
@pytest.mark.slow(
    "start, first start",
    "delete snapshot, quarantine, workflow record, delete workflow record",
    "delete, snapshot, trim, restore",
    "publish and evict, stage what vanished, evict, fork",
)
@pytest.mark.parametrize("group", groups(SCENARIOS), ids=name_of)
async def test_sigkill_at_every_change_of_a_file(
    fault_shim: Path, template: Path, group: Sequence[Scenario], capsys: pytest.CaptureFixture[str]
) -> None:
    counts, problems = await explore(fault_shim, template, group)
    with capsys.disabled():
        print(*(f"\n{name}: killed at {count} points" for name, count in counts.items()))  # noqa: T201 - what was tested
    assert not problems, f"{len(problems)} of {counts.total()} points:\n" + "\n".join(problems[:10])


@pytest.mark.slow("row_before_file-publish", "early_acknowledgement-append")
@pytest.mark.parametrize(
    ("mistake", "name"),
    [("row_before_file", "publish"), ("no_transaction", "rewrite"), ("early_acknowledgement", "append")],
)
async def test_the_matrix_finds_mistakes(fault_shim: Path, template: Path, mistake: str, name: str) -> None:
    scenario = next(each for each in SCENARIOS if each.name == name)
    # A busy machine lets some points after the store's answer pass.
    every = mistake == "early_acknowledgement"
    _, problems = await explore(fault_shim, template, [scenario], mistake, enough=1, every=every)
    assert problems
