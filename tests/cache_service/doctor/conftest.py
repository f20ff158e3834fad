"""A data directory that real commits made, copied for each test."""

import asyncio
import shutil
from pathlib import Path

import pytest

from ..offline.directory import fill


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("doctor") / "data"
    asyncio.run(fill(directory))
    return directory


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    """A copy of it; no store runs."""
    return Path(shutil.copytree(filled, tmp_path / "data"))
