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
