"""The store's services on both engines: one machine's, and one node of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache_service.cluster.settings import ClusterSettings

from ..conftest import Running, running

one_machines = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
"""For a test that looks into store.db, or holds its transactions."""


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, data: Path) -> AsyncIterator[Running]:
    shared: ClusterSettings | None = None
    if request.param == "postgres":
        shared = request.getfixturevalue("cluster")
    async with running(data, cluster=shared) as store:
        yield store
