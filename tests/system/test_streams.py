"""The whole stack where worker and store move files as streams: a restart resumes as warm as by path."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from agentmem.v1 import inference_pb2
from tests.system.stack import Stack, Turn, running
from tests.tiny_models import write_gemma3

STORY = "The colour of the boat is green, and the house by the sea is red. " * 30
QUESTIONS = ("Which colour has the house? " * 10, "And the boat?")
TOLERANCE = 1e-3


async def written(stack: Stack) -> None:
    """Wait until the worker has written the state of its first turn: a stream's blocks are there before its windows."""
    async with asyncio.timeout(60):
        while not await stack.metric("worker", "agentmem_cache_store_seconds_count"):
            await asyncio.sleep(0.02)


async def converse(model: Path, transfer: str) -> tuple[list[Turn], list[str]]:
    """A conversation with a restart before every turn; its turns and the names of the files that it left."""
    async with running(f"tiny={model}", worker_flags=("--store-transfer", transfer)) as stack:
        client, turns = await stack.client(), []
        await client.inference.Prefill(inference_pb2.PrefillRequest(key=client.key("a"), prompt=STORY), timeout=60)
        for question in QUESTIONS:
            await written(stack)
            stack.kill("worker", "store")
            await stack.up()
            held = len((await stack.ledger("a")).token_ids)
            turn = await client.say("a", question, max_tokens=12, top_logprobs=0)
            assert turn.cached == {"warm": held}, "all of it comes from disk"
            turns.append(turn)
        await written(stack)
        assert await stack.metric("worker", "agentmem_store_transfer", transfer=transfer) == 1
        assert f'transfer="{transfer}"' in stack.logs("worker")
        assert await stack.metric("worker", "agentmem_cache_load_bytes_total") > 0
        return turns, [path.name for path in (*stack.block_files(), *stack.window_files())]


@pytest.mark.slow
async def test_a_restart_resumes_by_stream_as_by_path(tmp_path: Path) -> None:
    """With windows, too."""
    model = write_gemma3(tmp_path)
    by_path, files = await converse(model, "path")
    by_stream, sent = await converse(model, "stream")
    for one, other in zip(by_path, by_stream, strict=True):
        assert one.token_ids == other.token_ids
        assert np.abs(np.array(one.logprobs) - np.array(other.logprobs)).max() < TOLERANCE
    assert np.std([value for turn in by_path for value in turn.logprobs]) > 100 * TOLERANCE, "the outputs vary"
    assert files == sent


async def test_auto_takes_the_path_on_one_disk(stack: Stack) -> None:
    assert await stack.metric("worker", "agentmem_store_transfer", transfer="path") == 1
    assert 'transfer="path"' in stack.logs("worker")


@pytest.mark.slow
@pytest.mark.kills
async def test_auto_streams_where_the_disk_is_not_shared(stack: Stack) -> None:
    """A probe that is another store's, as where two machines have the same paths; then a store that can be seen."""
    client = await stack.client()
    await client.inference.Prefill(inference_pb2.PrefillRequest(key=client.key("a"), prompt=STORY), timeout=60)
    await stack.on_disk("a")
    stack.kill("worker")
    (stack.data / "probe").write_bytes(bytes(32))
    await stack.up("worker")
    assert await stack.metric("worker", "agentmem_store_transfer", transfer="stream") == 1
    assert 'transfer="stream"' in stack.logs("worker")
    held = len((await stack.ledger("a")).token_ids)
    assert (await client.say("a", QUESTIONS[0], max_tokens=5)).cached == {"warm": held}

    assert await stack.metric("worker", "agentmem_peer_up", peer="store") == 1
    stack.kill("store")
    async with asyncio.timeout(60):  # A store that is back before the worker has looked is only found by the next call.
        while await stack.metric("worker", "agentmem_peer_up", peer="store"):
            await asyncio.sleep(0.02)
    await stack.up("store")
    async with asyncio.timeout(60):
        while not await stack.metric("worker", "agentmem_store_transfer", transfer="path"):
            await asyncio.sleep(0.02)
    assert await stack.metric("worker", "agentmem_store_transfer", transfer="stream") == 0
    await client.say("b", STORY, max_tokens=5)
    await stack.on_disk("b")
