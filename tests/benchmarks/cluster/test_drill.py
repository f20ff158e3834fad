"""The drill reports its rounds. `tests/cluster/test_cluster_drill.py` runs it."""

from __future__ import annotations

from benchmarks.cluster import drill
from benchmarks.cluster.history import Append, Outcome, Read


def test_turns_are_counted_by_what_clients_were_told() -> None:
    outcomes = (Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN)
    appends = [Append("a", str(number), 0.0, 1.0, outcome) for number, outcome in enumerate(outcomes)]
    found = drill.counts([*appends, Read("a", 0.0, 1.0, ())])
    assert found == {"turns": 4, "ok": 2, "failed": 1, "unknown": 1, "reads": 1}
