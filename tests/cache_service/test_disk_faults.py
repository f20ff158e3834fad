"""A disk that is full, or fails, at every change of a file: a readable refusal, nothing by half, and work goes on.

The faults come from shim.c, below SQLite and Python. With AGENTMEM_FULL_MATRIX=1 every point is tested, else
one of each kind of operation, for which the disk fails once or for good; and a third of the stores is started again.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from agentmem.errors import ResourceExhausted, from_rpc
from tests.faults.shim import FOR_EVER, Action, Kind
from tests.faults.victims import Victim
from tests.full_matrix import FULL

from .conftest import running
from .interrupted import Bench, Course, bench, groups, name_of, points, settled, template, undisturbed
from .invariants import View, check_directory, expect, files, view
from .scenarios import SCENARIOS, Scenario, append

__all__ = ["template"]


@dataclass(frozen=True)
class Fault:
    """A disk's fault from an operation on, and the statuses and words a caller may get.

    Faults with a `half` share the points that are drawn.
    """

    name: str
    error: int
    kinds: Kind
    lasts: bool
    codes: tuple[grpc.StatusCode, ...]
    words: str
    half: int | None = None

    def points(self, scenario: Scenario, operations: list[str]) -> list[int]:
        return points(operations, f"{scenario.name}, errno {self.error}", self.kinds, self.half)


FAULTS = (
    Fault("full", errno.ENOSPC, Kind.TAKES_SPACE, True, (grpc.StatusCode.RESOURCE_EXHAUSTED,), "disk is full"),
    Fault("fails once", errno.EIO, Kind.ALL, False, (grpc.StatusCode.INTERNAL,), "disk", half=0),
    Fault("fails", errno.EIO, Kind.ALL, True, (grpc.StatusCode.INTERNAL,), "disk", half=1),
)


async def refuse(bench: Bench, course: Course, number: int, operation: int, fault: Fault) -> str:
    """One call on a disk that fails: refused in words or done, nothing by half; repeated on a good disk, it is done."""
    scenario, slot = bench.scenario, bench.control[number]
    assert scenario.act is not None
    victim = await bench.opened(number)
    slot.arm(Action.FAIL, operation, FOR_EVER if fault.lasts else operation, error=fault.error, kinds=fault.kinds)
    answer = "done"
    try:
        await scenario.act(victim)
    except grpc.aio.AioRpcError as error:
        answer = f"{error.code().name}: {error.details()}"
        check_refusal(error, fault)
    if scenario.vanished:
        slot.disarm()
    found = await view(victim) if answer == "done" or not scenario.vanished else course.before
    if answer == "done" and found.without_kv() == course.after.without_kv():
        check_files(course, found)
    elif answer == "done":
        check_done(scenario, course, found)
    else:
        allowed = [course.before] if scenario.strict else [course.before, course.after]
        if not scenario.strict and found.without_kv() == course.after.without_kv():
            allowed = [found]  # the ledger is changed, and files follow with the next call
            check_files(course, found)
        expect(found, allowed, answer)
    slot.disarm()
    await repeat(scenario, course, victim, found != course.before)
    return answer


def check_files(course: Course, found: View) -> None:
    """Files that the disk did not let go yet may be there, and none that was not before or should not be."""
    assert found.files >= course.after.files & course.before.files
    assert found.files <= course.before.files | course.after.files


def check_done(scenario: Scenario, course: Course, found: View) -> None:
    """It is as it should be afterwards; whom an eviction meets depends on when the disk lets it happen."""
    if scenario.room is None:
        expect(found, [course.after])
    else:
        expect(found.without_kv(), [course.after.without_kv()])


def check_refusal(error: grpc.aio.AioRpcError, fault: Fault) -> None:
    """The right status, with a reason in words, and for a full disk with the time to try again."""
    details = error.details() or ""
    assert error.code() in fault.codes, details
    assert fault.words in details and "internal error; " not in details
    if fault.error == errno.ENOSPC:
        refused = from_rpc(error)
        assert isinstance(refused, ResourceExhausted) and refused.retry_after > 1


async def repeat(scenario: Scenario, course: Course, victim: Victim, done: bool) -> None:
    assert scenario.act is not None
    try:
        await scenario.act(victim)
    except grpc.aio.AioRpcError as error:
        if error.code() is not scenario.again or not done:
            raise
    await settled(victim)
    check_done(scenario, course, await view(victim))


class Tried(NamedTuple):
    scenario: Scenario
    course: Course
    number: int
    point: str


@pytest.mark.slow
@pytest.mark.parametrize("group", groups(each for each in SCENARIOS if each.act is not None), ids=name_of)
async def test_calls_on_a_disk_that_fails(
    fault_shim: Path, template: Path, group: Sequence[Scenario], capsys: pytest.CaptureFixture[str]
) -> None:
    async with bench(fault_shim, template, group[0]) as shared:
        problems: list[str] = []
        every: list[Tried] = []
        for scenario in group:
            tested = replace(shared, scenario=scenario)
            course = await undisturbed(tested)
            for fault in FAULTS:
                tried, refused = await fail_everywhere(tested, course, fault, problems)
                with capsys.disabled():
                    print(f"\n{scenario.name}, disk {fault.name}: {len(tried)} points, {refused} refused")  # noqa: T201
                assert refused > 0
                every += tried
        await shared.child.kill()
        again = every if FULL else random.Random(name_of(tuple(group))).sample(every, -(-len(every) // 3))
        for scenario, course, number, point in again:
            try:
                async with running(shared.folder / str(number) / "d", scenario.limits(template)) as store:
                    check_done(scenario, course, await view(store))
                    check_directory(store)
            except Exception as error:  # noqa: BLE001 - collected, so that the report has every point
                problems.append(f"{point}, restarted: {type(error).__name__} {error}")
        assert not problems, f"{len(problems)} of {len(every)} points:\n" + "\n".join(problems[:10])


async def fail_everywhere(tested: Bench, course: Course, fault: Fault, problems: list[str]) -> tuple[list[Tried], int]:
    """One fault at every point: the stores, and how many of them have refused."""
    tried, refused, logged = [], 0, len(tested.log())
    for operation in fault.points(tested.scenario, course.operations):
        number = next(tested.slots)
        point = f"{tested.scenario.name}, disk {fault.name}, operation {operation}"
        tried.append(Tried(tested.scenario, course, number, point))
        try:
            refused += await refuse(tested, course, number, operation, fault) != "done"
        except Exception as error:  # noqa: BLE001 - collected, so that the report has every point
            what = (tested.control[number].operations() or ["?"])[-1]
            problems.append(f"{point} ({what}): {type(error).__name__} {error}")
    assert "Traceback" not in tested.log()[logged:] or fault.error == errno.EIO
    return tried, refused


@pytest.mark.slow
async def test_a_turn_that_failed_does_not_come_back_after_a_crash(fault_shim: Path, template: Path) -> None:
    """Where only the last fsync of a commit fails, the whole turn is in the WAL."""
    scenario = next(each for each in SCENARIOS if each.name == "append")
    async with bench(fault_shim, template, scenario) as tested:
        course = await undisturbed(tested)
        last = len(course.operations)
        for number in range(last - 4, last + 1):
            victim = await tested.opened(number)
            tested.control[number].arm(Action.FAIL, number)
            with pytest.raises(grpc.aio.AioRpcError):
                await append(victim)
        await tested.child.kill()
        for number in range(last - 4, last + 1):
            async with running(tested.folder / str(number) / "d", tested.limits) as store:
                expect(await view(store), [course.before], course.operations[number - 1])


@pytest.mark.slow
@pytest.mark.parametrize("group", groups(each for each in SCENARIOS if each.act is None), ids=name_of)
async def test_starts_on_a_disk_that_fails(
    fault_shim: Path, template: Path, group: Sequence[Scenario], capsys: pytest.CaptureFixture[str]
) -> None:
    async with bench(fault_shim, template, group[0]) as shared:
        for scenario in group:
            tested = replace(shared, scenario=scenario)
            course = await undisturbed(tested)
            for fault in FAULTS:
                every = fault.points(scenario, course.operations)
                for operation in every:
                    await start(tested, course, fault, operation)
                with capsys.disabled():
                    print(f"\n{scenario.name}, disk {fault.name}: {len(every)} points")  # noqa: T201


async def start(tested: Bench, course: Course, fault: Fault, operation: int) -> None:
    number = next(tested.slots)
    data, slot = tested.lay_out(number), tested.control[number]
    last = FOR_EVER if fault.lasts else operation
    slot.arm(Action.FAIL, operation, last, error=fault.error, kinds=fault.kinds)
    problem = await tested.child.open(number, data, tested.limits)
    slot.disarm()
    where = f"{tested.scenario.name}, operation {operation} ({(slot.operations() or ['?'])[-1]}): {problem}"
    if problem:
        assert problem.split(":")[0] in READABLE, where
        assert await tested.child.open(number, data, tested.limits) == "", where
    victim = tested.child.victim(number, data)
    expect(await view(victim), [course.after], where)
    await files(victim)


READABLE = ("ResourceExhausted", "Internal", "OSError", "OperationalError", "DatabaseError", "DirectoryUnusable")
"""Errors told in one line before the process exits."""
