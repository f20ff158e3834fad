"""Two stores of one cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache_service.cluster.postgres.settings import Settings
from tests.cache_service.cluster.several import Node, node


@pytest.fixture
async def two(data: Path, cluster: Settings) -> AsyncIterator[tuple[Node, Node]]:
    async with node(data, cluster, "a") as a, node(data, cluster, "b") as b:
        yield a, b
