"""SIGTERM under way: services say that they end, take nothing new, let what runs end, write it down, and are gone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from pathlib import Path

import grpc
import pytest

from agentmem.errors import Unavailable, from_rpc, is_unreachable
from agentmem.kv.blockfile import chain_hashes
from agentmem.v1 import inference_pb2, model_pb2, types_pb2
from tests.system.client import Client, refused
from tests.system.stack import running, serving

TURN = {"max_tokens": 800, "sampling": types_pb2.Sampling(ignore_eos=True)}
"""Long enough to see all the rest during it."""
PATIENT = ("--grace", "60")


async def begin(client: Client, agent: str) -> grpc.aio.UnaryStreamCall[object, inference_pb2.GenerateResponse]:
    """A turn that has said something."""
    call = client.inference.Generate(client.request(agent, prompt="The boat is green.", **TURN))
    while not (await call.read()).HasField("delta"):
        pass
    return call


async def unavailable(call: Awaitable[object], words: str) -> None:
    error = await refused(call, grpc.StatusCode.UNAVAILABLE, words)
    failure = from_rpc(error)
    assert isinstance(failure, Unavailable) and failure.retry_after > 0 and not is_unreachable(error)


@pytest.mark.slow
async def test_a_worker_ends_in_order(tiny: Path) -> None:
    async with running(f"tiny={tiny}", "store", "worker", "gateway", worker_flags=PATIENT) as stack:
        client, worker = await stack.client("gateway"), f"unix:{stack.run}/worker.sock"
        fingerprint = (await client.models.GetModel(model_pb2.GetModelRequest(), timeout=10)).model.fingerprint
        call = await begin(client, "a")
        stack.processes["worker"].send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            while await serving(worker, "agentmem.v1.InferenceService"):
                await asyncio.sleep(0.01)
        await unavailable(client.say("b", "hello", max_tokens=2), "shutting down")
        await stack.until_ready(503, "the inference worker is NOT_SERVING: it is shutting down")
        last = inference_pb2.GenerateResponse()
        tokens = 0
        while (event := await call.read()) is not grpc.aio.EOF:
            last, tokens = event, tokens + len(event.delta.token_ids)
        assert tokens > 1, "the turn went on when the others were refused"
        assert last.finished.durable
        assert await asyncio.to_thread(stack.processes["worker"].wait, 60) == 0
        ledger = (await stack.ledger("a")).token_ids
        assert len(ledger) > TURN["max_tokens"]  # type: ignore[operator]
        written = {file.stem for file in stack.block_files()}
        hashes = {name.hex() for name in chain_hashes(fingerprint, "default", ledger)}
        assert hashes <= written, "blocks were flushed"
        assert await serving(f"unix:{stack.run}/store.sock"), "nobody else has ended"


@pytest.mark.slow
async def test_a_store_ends_in_order(tiny: Path) -> None:
    """Turns of the worker that come meanwhile fail with a time to try again, and succeed when it is back."""
    async with running(f"tiny={tiny}", "store", "worker", "gateway") as stack:
        client = await stack.client("gateway")
        told = (await client.say("a", "The key is in the cellar.", max_tokens=4)).finished.version
        stack.kill("store", number=signal.SIGTERM)
        assert not list((stack.data).glob("*.db-wal")), "what was written is in the databases themselves"
        await unavailable(client.say("a", "hello", max_tokens=2), "store")
        await stack.up("store")
        async with asyncio.timeout(60):
            while True:
                try:
                    turn = await client.say("a", "Where is it?", max_tokens=4)
                    break
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    await asyncio.sleep(0.1)
        assert turn.match == "EXTEND"
        assert (turn.finished.version.uid, turn.finished.version.version) == (told.uid, told.version + 1)
