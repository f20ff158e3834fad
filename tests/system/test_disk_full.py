"""A disk or a quota that is full, or a disk that fails: KV is optional and says so, the ledger is not."""

import asyncio
import errno
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from agentmem.errors import ResourceExhausted, from_rpc
from tests.faults.shim import FOR_EVER, Action, Control, Kind, Slot
from tests.system.client import Client, refused, until
from tests.system.stack import Stack, hosting

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
    async def so_many() -> bool:
        return await stack.metric("worker", "agentmem_cache_store_failures_total") >= at_least

    await until(so_many)


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
    failed = await refused(client.say("ada", "And now?", request_id="second", max_tokens=4), code, words)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        told = from_rpc(failed)
        assert isinstance(told, ResourceExhausted) and told.retry_after > 1
    assert (await client.agent("ada")).version == first.finished.version
    assert await stack.ledger("ada") == before
    assert "store.db fails" in stack.logs("store")
    reason = "full" if error == errno.ENOSPC else "io_error"
    assert await stack.metric("store", "agentmem_ledger_failures_total", reason=reason) >= 1
    await stack.until_ready(503, words)
    slot.disarm()
    await stack.until_ready()
    again = await client.say("ada", "And now?", request_id="second", max_tokens=4)
    assert again.finished.durable and not again.finished.replayed
    assert again.finished.version.version == first.finished.version.version + 1


KV_OF_ONE_TURN = 150_000
PROSE = "The colour of the boat is green. " * 30


async def test_kv_above_the_quota_is_not_kept_and_the_turns_are(tiny: Path) -> None:
    async with hosting(f"tiny={tiny}", store_flags=("--namespaces", f"default={KV_OF_ONE_TURN}")) as stack:
        client = await stack.client()
        await client.say("a", PROSE, max_tokens=4)
        await stack.on_disk("a")
        for turn in range(3):
            assert (await client.say("b", PROSE, max_tokens=4)).finished.durable
            assert (await client.agent("b")).version.version == turn + 1
        async with asyncio.timeout(60):
            while "blocks were not written" not in stack.logs("worker"):
                await asyncio.sleep(0.05)
        for name in ("worker", "store"):  # what is being published is over the quota until it is taken back
            stack.kill(name, number=signal.SIGTERM)
        kept = sum(path.stat().st_size for path in stack.block_files())
        assert 0 < kept <= KV_OF_ONE_TURN
        assert "the quota of namespace 'default'" in stack.logs("worker")
