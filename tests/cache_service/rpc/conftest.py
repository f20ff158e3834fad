"""The store's services on each engine that there is: one machine's, and one node of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ..conftest import ENGINES, Running, running

one_machines = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
"""For a test that looks into store.db, or holds its transactions."""


@pytest.fixture(params=ENGINES)
async def store(request: pytest.FixtureRequest, data: Path) -> AsyncIterator[Running]:
    shared = request.getfixturevalue("cluster") if request.param == "postgres" else None
    async with running(data, cluster=shared) as store:
        yield store
