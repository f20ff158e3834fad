"""Idle time is time that passes, whatever the machine's clock is set to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_service.ledger.clock import SETTLING, Clock, Reading, Time, advanced, resumed
from cache_service.ledger.database import Database
from tests.cache_service import kv
from tests.cache_service.conftest import running
from tests.cache_service.offline.directory import change

SECOND = 10**9
HOUR, DAY = 3600 * SECOND, 24 * 3600 * SECOND
ROUND = 10 * SECOND
USES = "SELECT used FROM agents ORDER BY used"


class Machine:
    def __init__(self) -> None:
        self.boot, self.awake, self.wall = "first", 5 * SECOND, 1_000_000 * DAY // 50

    def read(self) -> Reading:
        return Reading(self.boot, self.awake, self.wall)

    def passes(self, time: int) -> None:
        self.awake, self.wall = self.awake + time, self.wall + time

    def is_off(self, time: int) -> None:
        self.boot, self.awake, self.wall = f"after {self.boot}", 3 * SECOND, self.wall + time


def run(clock: Clock, machine: Machine, time: int) -> None:
    for _ in range(time // ROUND):
        machine.passes(ROUND)
        clock.advance()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "store.db")
    database.open()
    yield database
    database.close()


def restarted(database: Database, machine: Machine, clock: Clock) -> Clock:
    stop(database, clock)
    return Clock(database, machine.read)


def stop(database: Database, clock: Clock) -> None:
    clock.stop()
    database.write_blocking(lambda _: None)


@pytest.mark.parametrize("jump", [40 * DAY, -40 * DAY, 100 * 365 * DAY])
@pytest.mark.parametrize("restarts", [False, True])
def test_no_step_of_the_clock_counts(database: Database, machine: Machine, jump: int, restarts: bool) -> None:
    clock = Clock(database, machine.read)
    began = clock.time()
    machine.wall += jump
    if restarts:
        clock = restarted(database, machine, clock)
    run(clock, machine, 2 * HOUR)
    assert clock.time() - began == 2 * HOUR
    machine.wall -= jump
    run(clock, machine, 2 * HOUR)
    assert clock.time() - began == 4 * HOUR
    assert clock.now().wall == machine.wall


def test_time_without_a_store_counts(database: Database, machine: Machine) -> None:
    clock = Clock(database, machine.read)
    began = clock.time()
    machine.passes(3 * DAY)
    assert restarted(database, machine, clock).time() - began == 3 * DAY


def test_time_that_the_machine_was_off_counts_when_its_clock_has_settled(database: Database, machine: Machine) -> None:
    clock = Clock(database, machine.read)
    began = clock.time()
    stop(database, clock)
    machine.is_off(3 * DAY)
    clock = Clock(database, machine.read)
    run(clock, machine, SETTLING - ROUND)
    assert clock.time() - began < HOUR
    run(clock, machine, 2 * ROUND)
    assert clock.time() - began == 3 * DAY + SETTLING + ROUND
    assert restarted(database, machine, clock).time() - began == 3 * DAY + SETTLING + ROUND, "and counts once"


@pytest.mark.parametrize("wrong", [40 * DAY, -40 * DAY, -50 * 365 * DAY])
@pytest.mark.parametrize("corrected", ["while it runs", "after a restart", "between two runs"])
def test_a_clock_that_is_wrong_at_first_is_corrected(
    database: Database, machine: Machine, wrong: int, corrected: str
) -> None:
    clock = Clock(database, machine.read)
    began = clock.time()
    stop(database, clock)
    machine.is_off(3 * DAY + wrong)
    clock = Clock(database, machine.read)
    run(clock, machine, SETTLING - ROUND)
    if corrected == "after a restart":
        clock = restarted(database, machine, clock)
    stop(database, clock)
    machine.wall -= wrong
    if corrected == "between two runs":
        clock = Clock(database, machine.read)
    run(clock, machine, SETTLING + 2 * ROUND)
    assert clock.time() - began == 3 * DAY + 2 * SETTLING + ROUND


def test_a_crash_loses_no_time(database: Database, machine: Machine) -> None:
    """Nothing was written down since the start."""
    clock = Clock(database, machine.read)
    began = clock.time()
    run(clock, machine, 5 * HOUR)
    assert Clock(database, machine.read).time() - began == 5 * HOUR
    machine.is_off(DAY)
    clock = Clock(database, machine.read)
    run(clock, machine, SETTLING + ROUND)
    assert clock.time() - began == 5 * HOUR + DAY + SETTLING + ROUND


@given(st.lists(st.tuples(st.integers(0, DAY), st.integers(-DAY, DAY), st.sampled_from(["on", "restart", "boot"]))))
def test_it_never_goes_back_and_never_ahead_of_what_passed(steps: list[tuple[int, int, str]]) -> None:
    """But for time that the machine was off, of which here is none."""
    machine = Machine()
    found = Time(0, None, machine.read(), machine.awake)
    passed, off = 0, False
    for span, step, event in steps:
        machine.passes(span)
        machine.wall += step
        passed += span
        off |= event == "boot"
        if event == "boot":
            machine.is_off(0)
        later = resumed(found.time, found.off, found.read, machine.read()) if event != "on" else None
        later = later or advanced(found, machine.read())
        assert later.time >= found.time
        assert off or later.time == passed
        found = later


async def test_what_was_stamped_by_a_clock_that_is_lost(data: Path, machine: Machine) -> None:
    """An agent whose stamp is ahead would never end; the others must not look idle for its sake, nor for now's."""
    async with running(data) as store:
        for agent in ("ada", "eve"):
            await store.cache.CommitTurn(kv.turn([1], key=kv.key(agent)))
    change(data, "DELETE FROM clock")
    change(data, "UPDATE agents SET used = ? WHERE agent_id = 'ada'", machine.wall - HOUR)
    change(data, "UPDATE agents SET used = ? WHERE agent_id = 'eve'", machine.wall + 40 * DAY)
    database = Database(data / "store.db")
    database.open()
    try:
        clock = Clock(database, machine.read)
        assert clock.time() == machine.wall
        database.write_blocking(lambda connection: connection.execute("DELETE FROM clock"))
        machine.wall += 90 * DAY
        clock = Clock(database, machine.read)
        assert clock.time() == machine.wall - 90 * DAY, "the last use that is known, until the clock has settled"
        used = database.read_blocking(lambda connection: connection.execute(USES).fetchall())
        assert used == [(machine.wall - 90 * DAY - HOUR,), (machine.wall - 90 * DAY,)]
    finally:
        database.close()
