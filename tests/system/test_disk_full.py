"""A disk that is full or fails under the whole stack: KV is optional and says so, the ledger is not."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest

from agentmem.errors import ResourceExhausted, from_rpc
from tests.faults.shim import FOR_EVER, Action, Control, Kind, Slot
from tests.system.client import Client
from tests.system.stack import Stack

LONG = "the colour of the boat is green 😀. " * 22


@pytest.fixture
async def shimmed(fault_shim: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Stack, Slot]]:
    """Store and worker under the shim, and the slot of their data directory."""
    stack = Stack(f"tiny={tiny}", under=("tests.system.shimmed",), data="0")
    try:
        control = Control(stack.root / "control", stack.root)
        monkeypatch.setenv("SHIM", str(fault_shim))
        monkeypatch.setenv("SHIM_CONTROL", str(control.path))
        await stack.up()
        yield stack, control[0]
    finally:
        await stack.destroy()


async def failures(stack: Stack, at_least: int) -> None:
    async with asyncio.timeout(60):
        while await stack.metric("worker", "agentmem_cache_store_failures_total") < at_least:
            await asyncio.sleep(0.02)


async def readiness(stack: Stack, words: str) -> None:
    """Wait until /readyz says these words, or that it is ready."""
    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while True:
            answer = await http.get(f"{stack.url}/readyz")
            if (answer.status_code == 503 and words in answer.text) if words else answer.status_code == 200:
                return
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_worker_without_room_for_files_answers_and_writes_them_later(shimmed: tuple[Stack, Slot]) -> None:
    stack, slot = shimmed
    client = await stack.client()
    slot.arm(Action.FAIL, 1, FOR_EVER, error=errno.ENOSPC, kinds=Kind.CREATE | Kind.WRITE, part="/staging/")
    turn = await client.say("ada", LONG, max_tokens=4)
    assert turn.finished.durable and len(turn.token_ids) == 4
    await failures(stack, 1)
    assert slot.hits > 0 and stack.block_files() == []
    assert "blocks were not written; the ledger has the turn: [Errno 28] No space left on device" in stack.logs(
        "worker"
    )
    slot.arm(Action.FAIL, 2, FOR_EVER, error=errno.ENOSPC, kinds=Kind.CREATE | Kind.WRITE, part="/staging/")
    second = await client.say("ada", "And now?", max_tokens=4)
    assert second.finished.durable and second.cached, "what is in memory is used"
    await failures(stack, 2)
    assert list((stack.data / "staging").iterdir()) == [], "what was begun is gone"
    slot.disarm()
    await client.say("ada", "And then?", max_tokens=4)
    files = await stack.on_disk("ada")
    assert len(files) >= 2
    stack.kill("worker")
    await stack.up("worker")
    assert (await client.say("ada", "Do you remember?", max_tokens=4)).cached.keys() == {"warm"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errno.ENOSPC, grpc.StatusCode.RESOURCE_EXHAUSTED, "disk is full"),
        (errno.EIO, grpc.StatusCode.INTERNAL, "disk fails"),
    ],
)
async def test_a_ledger_that_cannot_be_written_fails_the_turn_loudly(
    shimmed: tuple[Stack, Slot], error: int, code: grpc.StatusCode, words: str
) -> None:
    stack, slot = shimmed
    await stack.up("gateway")
    client: Client = await stack.client()
    first = await client.say("ada", "Hello.", max_tokens=4)
    before = await stack.ledger("ada")
    slot.arm(Action.FAIL, 1, FOR_EVER, error=error, kinds=Kind.WRITE, part="store.db")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.say("ada", "And now?", request_id="second", max_tokens=4)
    assert refused.value.code() is code and words in (refused.value.details() or "")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        told = from_rpc(refused.value)
        assert isinstance(told, ResourceExhausted) and told.retry_after > 1
    assert (await client.agent("ada")).version == first.finished.version
    assert await stack.ledger("ada") == before
    assert "store.db fails" in stack.logs("store")
    reason = "full" if error == errno.ENOSPC else "io_error"
    assert await stack.metric("store", "agentmem_ledger_failures_total", reason=reason) >= 1
    await readiness(stack, words)
    slot.disarm()
    await readiness(stack, "")
    again = await client.say("ada", "And now?", request_id="second", max_tokens=4)
    assert again.finished.durable and not again.finished.replayed
    assert again.finished.version.version == first.finished.version.version + 1
