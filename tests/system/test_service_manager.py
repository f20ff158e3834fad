"""When a service serves: a service manager hears it, and it is true when it hears it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.service_manager import Heard
from tests.system.stack import Stack, serving


@pytest.fixture
async def stopped(tiny: Path) -> AsyncIterator[Stack]:
    stack = Stack(f"tiny={tiny}")
    yield stack
    await stack.destroy()


@pytest.fixture
def manager(stopped: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Heard]]:
    with ExitStack() as stack:

        def start(name: str) -> Heard:
            heard = stack.enter_context(Heard(stopped.root))
            monkeypatch.setenv("NOTIFY_SOCKET", heard.address)
            monkeypatch.setenv("WATCHDOG_USEC", "3000000")
            stopped.start(name)
            return heard

        yield start


@pytest.mark.slow
async def test_what_a_service_manager_hears(stopped: Stack, manager: Callable[[str], Heard]) -> None:
    worker = manager("worker")
    said = await worker.wait_for("STATUS=loading the model")
    said += await worker.wait_for("STATUS=the cache store does not answer")
    assert "READY=1" not in said + worker.listen(), "its model is loaded, and no turn could run"
    assert not await serving(f"unix:{stopped.run}/worker.sock")

    gateway = manager("gateway")
    await gateway.wait_for("READY=1")  # of its own door: it outlives its worker, and says what is missing
    async with httpx.AsyncClient(base_url=stopped.url) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        assert "READY=1" not in worker.listen()

        store = manager("store")
        await store.wait_for("READY=1")
        assert await serving(f"unix:{stopped.run}/store.sock")
        await worker.wait_for("READY=1")
        assert await serving(f"unix:{stopped.run}/worker.sock")
        await stopped.until_ready()

    stopped.kill("store")
    await worker.wait_for("STATUS=the cache store does not answer")
    store = manager("store")
    await store.wait_for("READY=1")
    await worker.wait_for("READY=1")
    await worker.wait_for("WATCHDOG=1")

    for name, heard in (("gateway", gateway), ("worker", worker), ("store", store)):
        process = stopped.processes[name]
        process.terminate()
        assert process.wait(30) == 0
        await heard.wait_for("STOPPING=1")
        assert "READY=1" not in heard.said


@pytest.mark.slow
@pytest.mark.kills
async def test_a_worker_that_does_not_see_its_stores_disk_does_not_serve(stack: Stack) -> None:
    """A probe that is another store's, as where two machines have the same paths; then a store that can be seen."""
    stack.kill("worker")
    (stack.data / "probe").write_bytes(bytes(32))
    stack.start("worker")
    async with asyncio.timeout(60):
        while "mount its data directory" not in stack.logs("worker"):
            await asyncio.sleep(0.02)
    assert not await serving(f"unix:{stack.run}/worker.sock")
    stack.kill("store")
    await stack.up("store")
    await stack.ready("worker")
    assert (await (await stack.client()).say("b", "Hello", max_tokens=5)).token_ids
