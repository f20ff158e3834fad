from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gateway.cli.bench.machine.plan import (
    OURS,
    THEIRS,
    WORKS,
    Budget,
    Pace,
    answer_tokens,
    samples,
    steps,
    too_long,
    work_within,
)

FAST = Pace(prompt=5000, answer=100, together={8: 400})
SLOW = Pace(prompt=40, answer=2)


def test_one_server_runs_at_a_time_and_each_starts_twice() -> None:
    taken = [
        (key, [step.part for step in own]) for key, own in itertools.groupby(steps(), lambda s: (s.server, s.round))
    ]
    assert [key for key, _ in taken] == [("", 1), (OURS, 1), (THEIRS, 1), (OURS, 2), (THEIRS, 2)]
    assert all(parts[0] == "start" for (server, _), parts in taken if server)
    assert {"first tokens", "answers", "work"} <= set(taken[-1][1])


def test_a_step_gets_its_share_of_what_is_left() -> None:
    now = 100.0
    budget = Budget(600, lambda: now)
    assert budget.share(10, 50) == 100
    now = 400.0
    assert (budget.left, budget.share(10, 20), budget.share(3, 0)) == (300, 100, 300)
    now = 900.0
    assert (budget.left, budget.share(10, 20)) == (0, 0)


@pytest.mark.parametrize(("cost", "left", "count"), [(1, 100, 3), (20, 100, 2), (60, 100, 1), (500, 100, 1)])
def test_samples_take_half_of_what_is_left_at_most(cost: float, left: float, count: int) -> None:
    assert samples(cost, left) == count


def test_work_is_the_largest_that_fits_into_time_and_context() -> None:
    assert work_within(FAST, 60, 8192) == WORKS[0]
    assert work_within(FAST, 60, 2100) == WORKS[1]
    assert work_within(SLOW, 80, 8192) == WORKS[-1]
    assert work_within(SLOW, 1, 8192) is None
    for one, next_one in itertools.pairwise(WORKS):
        assert one.seconds(SLOW) > next_one.seconds(SLOW)


def test_several_agents_are_reckoned_by_their_own_speed() -> None:
    alone = replace(FAST, together={})
    assert FAST.answers_seconds(8, 100) < alone.answers_seconds(8, 100)
    assert WORKS[0].seconds(FAST) < WORKS[0].seconds(alone)


@pytest.mark.parametrize(("speed", "tokens"), [(1000, 128), (10, 30), (0.1, 16)])
def test_answers_take_a_tenth_of_the_share(speed: float, tokens: int) -> None:
    assert answer_tokens(Pace(100, speed), 30) == tokens


def test_what_would_take_too_long_is_said() -> None:
    assert too_long(200, 40) == "would take about 3 min, of which 40 s are left"
    assert too_long(12, -3) == "would take about 12 s, of which 0 s are left"
