"""The ledger's time on a node, between heartbeats that take longer and shorter."""

import pytest

from cache_service.cluster.clock import SharedClock

SECOND = 10**9
HOUR = 3600 * SECOND


@pytest.mark.parametrize("late", [SECOND // 100, 7 * SECOND])
def test_a_slow_heartbeat_does_not_take_time_back(late: int) -> None:
    clock = SharedClock()
    clock.set(used=100 * SECOND, wall=HOUR)
    before = clock.now()
    clock.set(used=100 * SECOND - late, wall=HOUR - late)
    after = clock.now()
    assert before.wall <= after.wall < HOUR + SECOND and before.used <= after.used < 101 * SECOND


def test_time_goes_on_once_it_is_past_what_was_told() -> None:
    clock = SharedClock()
    clock.set(used=100 * SECOND, wall=HOUR)
    clock.now()
    clock.set(used=102 * SECOND, wall=HOUR + 2 * SECOND)
    assert clock.time() >= 102 * SECOND
    assert clock.now().wall >= HOUR + 2 * SECOND


def test_the_shown_time_follows_a_clock_that_is_set_back_and_idle_time_does_not() -> None:
    clock = SharedClock()
    clock.set(used=100 * SECOND, wall=10 * HOUR)
    clock.now()
    clock.set(used=50 * SECOND, wall=9 * HOUR)
    assert clock.now().wall < 9 * HOUR + SECOND
    assert clock.time() >= 100 * SECOND
