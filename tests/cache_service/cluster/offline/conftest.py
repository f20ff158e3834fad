"""A directory with all that ledgers can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cache_service import scenarios
from tests.cache_service.conftest import running
from tests.cache_service.offline.directory import fill_branches


@pytest.fixture
async def branched(data: Path) -> Path:
    """A directory with forks, snapshots, cuts and past turns."""
    await fill_branches(data)
    return data


@pytest.fixture
async def furnished(data: Path) -> Path:
    async with running(data) as store:
        await scenarios.furnish(store)
    return data
