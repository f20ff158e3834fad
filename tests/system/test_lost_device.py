"""A GPU that fails: the worker ends with a status of its own, and all that was committed is there afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import mlx.core as mx
import pytest

from agentmem.errors import Unavailable, from_rpc
from agentmem.process.service import DEVICE_LOST
from tests.system.client import refused
from tests.system.stack import hosting

METAL = "[METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002)"


@pytest.mark.parametrize("running", [True, False], ids=["a stream", "idle"])
async def test_a_worker_whose_gpu_fails_says_so_and_ends(
    running: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(f"tiny={tiny}") as stack:
        client = await stack.client()
        first = await client.say("a", "The boat is green.", max_tokens=4)
        call = client.inference.Generate(client.request("b", prompt="hello", max_tokens=3500)) if running else None
        while call is not None and not (await call.read()).HasField("delta"):
            pass

        def fails(*_: object) -> None:
            raise RuntimeError(METAL)

        with monkeypatch.context() as patched:
            for name in ("eval", "async_eval"):
                patched.setattr(mx, name, fails)
            if call is not None:
                error = await refused(to_end(call), grpc.StatusCode.UNAVAILABLE, "GPU failed", "Timeout", "is kept")
            else:
                error = await refused(client.say("a", "And?", max_tokens=4), grpc.StatusCode.UNAVAILABLE, "GPU failed")
            failure = from_rpc(error)
            assert isinstance(failure, Unavailable) and failure.retry_after > 0
            assert await asyncio.to_thread(stack.processes["worker"].wait, 30) == DEVICE_LOST == 74
        stack.start("worker")
        await stack.ready()
        again = await client.say("a", "And?", max_tokens=4)
        assert again.match == "EXTEND" and again.finished.version.version == first.finished.version.version + 1
        assert not (await stack.ledger("b")).token_ids


async def to_end(call: grpc.aio.UnaryStreamCall[object, object]) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
