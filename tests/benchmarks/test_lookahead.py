"""Schedules, what is known of them at each turn, and rules on paper."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lookahead import (
    distances,
    farthest_first,
    hits,
    hub,
    least_recently_used,
    merged,
    round_robin,
)


def test_schedules() -> None:
    assert list(round_robin(2, 2).schedule) == ["agent 0", "agent 1", "agent 0", "agent 1"]
    assert list(hub(3, 2).schedule) == ["spoke 0", "hub", "spoke 1", "hub"] * 2
    for pattern in (round_robin(3, 2), hub(4, 1)):
        assert pattern.says.keys() == set(pattern.schedule)


def test_what_is_known_at_a_turn() -> None:
    assert distances("abcab", 0) == {"a": 2, "b": 0, "c": 1}
    assert distances("abcab", 2) == {"a": 0, "b": 1, "c": None}
    assert distances("abcab", 4) == {"a": None, "b": None, "c": None}


@pytest.mark.parametrize(("agents", "holds", "rounds"), [(8, 4, 5), (5, 4, 4), (3, 1, 3)])
def test_in_round_robin_the_last_use_is_always_wrong(agents: int, holds: int, rounds: int) -> None:
    schedule = round_robin(agents, rounds).schedule
    assert not any(hits(schedule, holds, least_recently_used))
    found = hits(schedule, holds, farthest_first)
    assert len(found) == agents * (rounds - 1)
    assert sum(found) >= len(found) * (holds - 1) // (agents - 1)


def test_a_hub_is_kept_by_either_rule_and_more_of_the_others_by_one() -> None:
    schedule = hub(8, 3).schedule
    found = {rule: hits(schedule, 4, rule) for rule in (least_recently_used, farthest_first)}
    follow_ups = [name for turn, name in enumerate(schedule) if name in schedule[:turn]]
    for outcome in found.values():
        assert all(hit for hit, name in zip(outcome, follow_ups, strict=True) if name == "hub")
    assert sum(found[least_recently_used]) == follow_ups.count("hub") < sum(found[farthest_first])


@given(schedule=st.text("abcde", max_size=40), holds=st.integers(1, 5))
def test_nobody_does_better_than_who_knows_what_comes(schedule: str, holds: int) -> None:
    assert sum(hits(schedule, holds, farthest_first)) >= sum(hits(schedule, holds, least_recently_used))


def test_figures_of_several_plays_are_weighed_by_turns() -> None:
    plays = [
        {"turns": 1, "tier": {"hot": 1, "warm": 0}, "hot_tokens": 1.0, "bytes_read": 0, "first_token": [1.0]},
        {
            "turns": 3,
            "tier": {"hot": 0, "warm": 3},
            "hot_tokens": 0.2,
            "bytes_read": 90,
            "first_token": [2.0, 3.0, 4.0],
        },
    ]
    found = merged(plays)
    assert (found["turns"], found["hot_turns"], found["tier"]["warm"], found["bytes_read"]) == (4, 0.25, 3, 45)
    assert found["hot_tokens"] == pytest.approx(0.4)
    assert found["first_token"]["median"] == 2.5
