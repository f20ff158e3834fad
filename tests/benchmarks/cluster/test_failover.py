"""The benchmark of lost nodes and a lost primary: one round at a small size, and what it says of its figures."""

from __future__ import annotations

import pytest

from benchmarks.cluster import failover
from benchmarks.cluster.clients import Spoken
from benchmarks.cluster.failover import DATABASE, KILLED, LEFT
from benchmarks.cluster.history import Outcome
from tests import postgres
from tests.cluster.nodes import Node

ASKED = {"agents": 2, "slots": 4, "prefill": 0.01, "answer": 0.1, "detection": 0.2, "between": 0.5}


@pytest.mark.slow
async def test_agents_speak_again_and_no_turn_is_lost() -> None:
    try:
        found = await failover.sample(0, ASKED, Node)
    except postgres.NoServer as problem:
        pytest.skip(str(problem))
    assert found["wrong"] == []
    assert found["turns"] >= sum(found[way]["turns"] for way in (KILLED, LEFT, DATABASE)) > 0
    assert all(wait > 0 for way in (KILLED, LEFT) for wait in found[way]["waits"])
    assert found[DATABASE]["longest"] > ASKED["detection"]


def spoken(agent: str, first: float, door: int = 0, failures: tuple[str, ...] = ()) -> Spoken:
    return Spoken(agent, f"{agent}-{first}", first - 1, first + 1, Outcome.OK, (), first, door, failures)


def test_the_first_token_after_a_loss_is_the_earliest() -> None:
    turns = [spoken("a", 9.0), spoken("a", 12.0), spoken("a", 14.0), spoken("b", 11.0), spoken("c", 11.0)]
    assert failover.first_tokens(turns, {"a", "b", "d"}, 10.0) == {"a": 2.0, "b": 1.0}


def test_errors_are_counted_by_name() -> None:
    turns = [spoken("a", 1.0), spoken("b", 2.0, failures=("UNAVAILABLE", "ABORTED")), spoken("c", 3.0)]
    assert failover.told(turns) == {"turns": 3, "again": 1, "failures": {"UNAVAILABLE": 1, "ABORTED": 1}}
