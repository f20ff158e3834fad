"""Three nodes, each a store, a worker and a gateway, on one ledger: killed, stopped, cut off, a clock that jumps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.cluster import drill
from benchmarks.cluster.faults import FAULTS, Pace, drilling
from benchmarks.cluster.history import Kind, violations
from tests import postgres
from tests.cluster.nodes import Node
from tests.full_matrix import FULL
from tests.postgres_pair import Pair, paired

PACE = Pace(between=600, during=100) if FULL else Pace(between=40, during=15)


@pytest.fixture
def pair() -> Iterator[Pair]:
    try:
        with paired() as pair:
            yield pair
    except postgres.NoServer as problem:
        pytest.skip(str(problem))


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_history_of_three_nodes_is_one_of_a_single_ledger() -> None:
    """Clients ask any gateway, which finds the agent's node, or any worker, so that hot states are often old."""
    try:
        found = await drill.one_round(PACE, 0, Node)
    except postgres.NoServer as problem:
        pytest.skip(str(problem))
    assert found["wrong"] == []
    assert found["ok"] and found["reads"]
    assert found["ok"] <= found["listed"] <= found["ok"] + found["unknown"]
    assert found["faults"].keys() <= FAULTS.keys()


@pytest.mark.slow
async def test_workers_that_trust_that_an_agent_is_theirs_are_found(pair: Pair) -> None:
    """Nothing has to fail for that."""
    async with drilling(pair, {}, PACE, worker="tests.cluster.mistaken_worker", made=Node) as mistaken:
        await mistaken.wait(5 * PACE.during)
        history = await mistaken.end()
        wrong = violations(history, await mistaken.lists())
    assert {violation.kind for violation in wrong} & {Kind.LOST, Kind.BLIND}
