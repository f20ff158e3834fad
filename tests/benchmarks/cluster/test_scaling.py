"""The benchmark of 1, 2 and 4 nodes: at a small size, and what it says of its figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cluster import scaling
from benchmarks.cluster.scaling import CLIENTS, DATABASE, SERVICES
from benchmarks.cluster.speakers import Spoken
from tests import postgres
from tests.cluster.nodes import Node

ASKED: dict[str, Any] = {
    **{"nodes": [1, 2], "agents": 3, "slots": 2, "prefill": 0.01, "answer": 0.02, "cold": 0.01},
    **{"warm": 0.3, "seconds": 1.0, "samples": 1},
}


def sample(rate: float, processors: float, slots: float) -> dict[str, Any]:
    kinds = dict.fromkeys((*SERVICES, CLIENTS), processors / 4)
    times = {"first": 0.25, "first_p99": 0.5, "hot": 0.9, "failures": 0}
    return {"rate": rate, "slots": slots, "processors": kinds, **times}


@pytest.mark.slow
async def test_one_node_and_two_take_turns() -> None:
    try:
        postgres.programs()
    except postgres.NoServer as problem:
        pytest.skip(str(problem))
    found = await scaling.measure("", ASKED, Node)
    for nodes in ("1", "2"):
        [one] = found["samples"][nodes]
        assert one["rate"] > 1 and 0 < one["first"] <= one["first_p99"]
        assert one["processors"].keys() == {*SERVICES, CLIENTS, DATABASE}
        assert all(used > 0 for used in one["processors"].values())
    assert found["samples"]["1"][0]["hot"] == 1.0, "there is no other node"
    assert found["ways"]["1"]["of_one"]["median"] == 1.0


def test_what_clients_saw_is_counted() -> None:
    turns = [
        Spoken("a", "a-1", 0.0, 0.5, 1.0, None, ()),
        Spoken("a", "a-2", 1.0, 1.25, 2.0, hot=True, seen=("a-1",)),
        Spoken("a", "a-3", 2.0, 2.75, 4.0, hot=False, seen=("a-1", "a-2"), failures=("UNAVAILABLE",) * 2),
    ]
    found = scaling.told(turns, 4.0)
    assert (found["rate"], found["first"], found["hot"], found["failures"]) == (0.75, 0.5, 0.5, 2)


def test_the_tables_say_what_there_is_no_more_of() -> None:
    found = scaling.figures(
        ASKED, {"1": [sample(10.0, 0.2, 0.99)], "2": [sample(19.0, 0.5, 0.6)], "4": [sample(20.0, 64.0, 0.3)]}
    )
    found["asked"]["cores"] = 8
    turns, processors = scaling.tables(found)
    assert turns.columns == ("", "1 node", "2 nodes", "4 nodes")
    rows = {row[0]: row[1:] for row in turns.rows}
    assert rows["of 1 node's in the same round"][1].startswith("1.90x")
    assert rows["half of the first tokens after at most"][0] == "250 ms (250–250)"
    assert rows["what there is no more of"] == ("slots", "agents", "processors")
    assert processors.rows[-1][0] == "all" and DATABASE not in [row[0] for row in processors.rows]
