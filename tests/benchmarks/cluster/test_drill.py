"""What the drill says of its rounds. It itself is run by `tests/cluster/test_cluster_drill.py`."""

from __future__ import annotations

from typing import Any

from benchmarks.cluster import drill
from benchmarks.cluster.faults import FAULTS
from benchmarks.cluster.history import Append, Outcome, Read


def one_round(turns: int, wrong: list[str]) -> dict[str, Any]:
    told = {"turns": turns, "ok": turns - 3, "failed": 2, "unknown": 1, "reads": 7, "again": 5, "listed": turns - 2}
    return {**told, "seconds": 60.0, "faults": {"kill_node": 1, "fail_over": 1}, "wrong": wrong}


def test_turns_are_counted_by_what_clients_were_told() -> None:
    outcomes = (Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN)
    appends = [Append("a", str(number), 0.0, 1.0, outcome) for number, outcome in enumerate(outcomes)]
    found = drill.counts([*appends, Read("a", 0.0, 1.0, ())])
    assert found == {"turns": 4, "ok": 2, "failed": 1, "unknown": 1, "reads": 1}


def test_tables() -> None:
    good = drill.figures({"turns": 10_000}, [one_round(6_000, []), one_round(6_500, [])])
    told, faults = drill.tables(good)
    rows = dict(told.rows)
    assert rows["turns"] == "12,500" and rows["of unknown outcome"] == "2" and "in 2 rounds" in told.note.lower()
    assert len(faults.rows) == len(FAULTS) and dict(faults.rows)["a node is killed"] == "2"
    bad = drill.figures({"turns": 10_000}, [one_round(900, ["agent 1: lost: x"])])
    assert dict(drill.tables(bad)[0].rows)["lost, doubled, out of order, or computed with another memory"] == "1"
