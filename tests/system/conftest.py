"""Models and stacks for the system tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.system.stack import Client, Stack, running
from tests.tiny_models import write_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model."""
    return write_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def stack(tiny: Path) -> AsyncIterator[Stack]:
    """Store and worker, with a fresh data directory."""
    async with running(f"tiny={tiny}") as stack:
        yield stack


@pytest.fixture
async def client(stack: Stack) -> Client:
    """A client of the worker."""
    return await stack.client()
