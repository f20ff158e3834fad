"""Models, stacks and SDKs for the system tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.system.client import Client
from tests.system.shared import DEMO, SharedStacks
from tests.system.stack import Stack
from tests.tiny_models import write_llama

if TYPE_CHECKING:
    import anthropic
    import openai

    from tests.postgres import Server
    from tests.system.test_cluster import Cluster

_SHARED = pytest.StashKey[SharedStacks]()


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SharedStacks]:
    shared = request.session.stash[_SHARED] = SharedStacks(tmp_path_factory.mktemp("models"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def tiny(stacks: SharedStacks) -> Path:
    return stacks.directory(write_llama)


@pytest.fixture
async def stack(stacks: SharedStacks, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """Store and worker with it, shared: no agents, but counters that have counted.

    They can be killed in tests that are marked `kills`.
    """
    killable = request.node.get_closest_marker("kills") is not None
    async with stacks.using(write_llama, killable=killable) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo(stacks: SharedStacks) -> AsyncIterator[Stack]:
    """Store, worker and gateway with the demo model, for a module; shared as `stack` is, and none of them is killed."""
    async with stacks.using(DEMO, "store", "worker", "gateway") as stack:
        yield stack


@pytest.fixture
async def two(tmp_path: Path, tiny: Path, postgres_server: Server) -> AsyncIterator[Cluster]:
    """A cluster of the nodes a and b."""
    from tests.system.test_cluster import cluster

    async with cluster(tmp_path, tiny, postgres_server, "a", "b") as made:
        yield made


@pytest.fixture
async def client(stack: Stack) -> Client:
    return await stack.client()


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's SDK for the gateway of a module's own stack. It tries nothing again."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=240) as sdk:
        yield sdk


@pytest_asyncio.fixture(loop_scope="module")
async def claude(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0, timeout=240) as sdk:
        yield sdk


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the shared services after the last system test: their threads and memory would be there in other tests."""
    if _SHARED in item.session.stash and (nextitem is None or not nextitem.nodeid.startswith("tests/system/")):
        item.session.stash[_SHARED].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the shared services have logged where a test failed."""
    report = yield
    if report.failed and _SHARED in item.session.stash and "stacks" in getattr(item, "fixturenames", ()):
        for stack in item.session.stash[_SHARED].stacks.values():
            for log in sorted(stack.root.glob("*.log")):
                report.sections.append((f"{stack.root.name}/{log.name}", log.read_text(errors="replace")[-4000:]))
    return report
