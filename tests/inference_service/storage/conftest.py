"""A store to write to and read from."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentmem.channels import connect
from inference_service.storage.client import StoreClient
from tests import scratch
from tests.cache_service.conftest import running
from tests.inference_service.storage.stored import World


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory with a path short enough for a socket."""
    parent = Path(tempfile.mkdtemp(dir=scratch.FOLDER, prefix="am"))
    yield parent / "d"
    shutil.rmtree(parent)


@pytest.fixture
async def world(data: Path) -> AsyncIterator[World]:
    """Yield a store in this process, on a socket: starting one takes as long as twenty tests here."""
    async with running(data), connect(f"unix:{data}/store.sock") as channel:
        yield World(data, StoreClient(channel))
