"""What tests of several modules need."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A directory whose name leaves room for socket paths."""
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="am"))
    yield path
    shutil.rmtree(path)
