"""The benchmark of commits, on both kinds of ledgers, and its tables."""

from __future__ import annotations

import pytest

from benchmarks.cluster import commits
from benchmarks.cluster.commits import POSTGRESQL, SQLITE
from tests import postgres

DURABLE = {**postgres.DURABLE, "full_page_writes": "on"}


@pytest.mark.slow
async def test_both_are_measured() -> None:
    with postgres.serving(DURABLE) as server:
        found = await commits.measure({SQLITE: "", POSTGRESQL: server.conninfo}, [1, 4], 0.5, 1)
        with server.connect() as connection:
            (kept,) = connection.execute("SELECT count(*) FROM agentmem.turns").fetchone()  # type: ignore[misc]
    for name in (SQLITE, POSTGRESQL):
        for agents in ("1", "4"):
            figures = found["ways"][name][agents]
            assert figures["rate"]["median"] > 1
            assert 0 < figures["p50"]["median"] <= figures["p99"]["median"]
    assert kept >= 2, "these are the ledger's commits"
    assert found["ways"][SQLITE]["1"]["of_sqlite"]["median"] == 1.0


def test_the_tables_have_all_that_was_measured() -> None:
    one = [{"rate": 100.0, "p50": 2.0, "p99": 9.0}, {"rate": 200.0, "p50": 1.0, "p99": 5.0}]
    half = [{"rate": 50.0, "p50": 4.0, "p99": 18.0}, {"rate": 100.0, "p50": 2.0, "p99": 10.0}]
    asked = {"agents": [1], "seconds": 1.0, "samples": 2}
    found = commits.figures(asked, {SQLITE: {"1": one}, POSTGRESQL: {"1": half}})
    rates, ratios, *_ = commits.tables(found)
    assert [row[0] for row in rates.rows] == [SQLITE, POSTGRESQL]
    assert ratios.rows[1][1].startswith("0.50")
