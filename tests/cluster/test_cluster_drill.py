"""Three nodes, each a store, a worker and a gateway, on one ledger: killed, stopped, cut off, a clock that jumps."""

from __future__ import annotations

import pytest

from benchmarks.cluster import drill
from benchmarks.cluster.faults import FAULTS, Pace
from benchmarks.cluster.postgres import NoServer
from tests.cluster.nodes import Node
from tests.full_matrix import FULL

PACE = Pace(between=600, during=100) if FULL else Pace(between=40, during=15)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_history_of_three_nodes_is_one_of_a_single_ledger() -> None:
    """Clients ask any gateway, which finds the agent's node, or any worker, so that hot states are often old."""
    try:
        found = await drill.one_round(PACE, 0, Node)
    except NoServer as problem:
        pytest.skip(str(problem))
    assert found["wrong"] == []
    assert found["ok"] and found["reads"]
    assert found["ok"] <= found["listed"] <= found["ok"] + found["unknown"]
    assert found["faults"].keys() <= FAULTS.keys()
