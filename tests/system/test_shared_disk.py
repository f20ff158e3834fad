"""A worker that does not see its store's disk does not serve, and says why."""

import asyncio

import pytest

from tests.system.stack import Stack, serving


@pytest.mark.slow
@pytest.mark.kills
async def test_a_worker_on_another_disk_does_not_serve(stack: Stack) -> None:
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
