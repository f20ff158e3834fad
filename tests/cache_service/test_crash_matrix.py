"""SIGKILL before and after every change of a file that a call makes: all of it is there afterwards, or nothing.

The child process runs the real store; shim.c counts its operations on files and holds it at one of them, until the
whole process is killed. With AGENTMEM_FULL_MATRIX=1 every point is tested, else one of each kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from cache_service.limits import Limits

from .conftest import running
from .interrupted import STOPS, Bench, Course, bench, points, settled, template, undisturbed, until_stopped
from .invariants import View, check_directory, expect, files, holds, view
from .scenarios import SCENARIOS, Scenario

__all__ = ["template"]
SHARED_WITH_THE_DATABASE = "store.db"


class Stopped(NamedTuple):
    """A store at its last point; `problem` is what who reads in this moment finds wrong."""

    number: int
    data: Path
    answered: bool
    where: str
    problem: str


async def stop_everywhere(bench: Bench, course: Course) -> list[Stopped]:
    """A store for each point, stopped there."""
    stopped = []
    every = points(course.operations, len(STOPS), bench.scenario.name)
    for number, (operation, fault) in enumerate(every, start=1):
        slot = bench.control[number]
        data, call = await bench.begin(number)
        slot.arm(STOPS[fault], operation)
        answered = await until_stopped(call, slot)
        victim = bench.child.victim(number, data)
        if answered and bench.scenario.act is not None:
            await until_stopped(settled(victim), slot)
        where = f"{STOPS[fault].name.lower()} {operation} ({(slot.operations() or ['?'])[-1]})"
        problem = ""
        if slot.stopped and bench.scenario.act is not None and SHARED_WITH_THE_DATABASE not in where:
            try:
                await files(victim)
            except AssertionError as error:
                problem = f"{where}, a reader in this moment: {error}"
        stopped.append(Stopped(number, data, answered, where, problem))
    return stopped


async def check(
    scenario: Scenario, limits: Limits, course: Course, data: Path, answered: bool, allowed: list[View]
) -> None:
    """Start again: what was acknowledged is there, the rest wholly or not at all, nothing leaks, and work goes on."""
    async with running(data, limits) as store:
        found = await view(store)
        expect(found, [course.after] if answered else allowed)
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


async def explore(library: Path, template: Path, scenario: Scenario, *mistakes: str) -> tuple[int, list[str]]:
    """Kill a store at every point of a scenario: how many points, and what was wrong at which."""
    async with bench(library, template, scenario, *mistakes) as tested:
        course = await undisturbed(tested)
        assert len(course.operations) > 0
        stopped = await stop_everywhere(tested, course)
        await tested.child.kill()
        problems = [each.problem for each in stopped if each.problem]
        allowed: list[View] = [course.before, course.after]
        if scenario.room is not None:
            allowed.append(await without_limits(library, template, scenario))
        for number, data, answered, where, _ in stopped:
            tested.control[number].disarm()
            try:
                await check(scenario, tested.limits, course, data, answered, allowed)
            except Exception as error:  # noqa: BLE001 - collected, so that the report has every point
                problems.append(f"{where}, {'' if answered else 'not '}answered: {type(error).__name__} {error}")
        return len(stopped), problems


async def without_limits(library: Path, template: Path, scenario: Scenario) -> View:
    """What readers see between a publication and the eviction that follows it."""
    roomy = Scenario(scenario.name, scenario.act, scenario.prepare)
    async with bench(library, template, roomy) as tested:
        return (await undisturbed(tested)).after


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_sigkill_at_every_change_of_a_file(
    fault_shim: Path, template: Path, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    count, problems = await explore(fault_shim, template, scenario)
    with capsys.disabled():
        print(f"\n{scenario.name}: killed at {count} points")  # noqa: T201 - how much was tested
    assert not problems, f"{len(problems)} of {count} points:\n" + "\n".join(problems[:10])


@pytest.mark.parametrize(
    ("mistake", "name"),
    [("row_before_file", "publish"), ("no_transaction", "rewrite"), ("early_acknowledgement", "append")],
)
async def test_the_matrix_finds_mistakes(fault_shim: Path, template: Path, mistake: str, name: str) -> None:
    scenario = next(each for each in SCENARIOS if each.name == name)
    _, problems = await explore(fault_shim, template, scenario, mistake)
    assert problems
