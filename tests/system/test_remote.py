"""KV that went to the object store: a turn fetches it, says so, and answers as if it had never left."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from tests import s3
from tests.system.client import append, chat, refused
from tests.system.recomputed import ARGUMENTS, LONG
from tests.system.stack import Stack, hosting
from tests.tiny_models import write_gemma3, write_llama


@pytest.fixture(autouse=True)
def store_settings(bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_STORE_REMOTE", bucket.location())
    monkeypatch.setenv("AGENTMEM_STORE_REMOTE_ENDPOINT", bucket.endpoint)
    monkeypatch.setenv("AGENTMEM_STORE_REMOTE_TIMEOUT", "5")


async def uploaded(stack: Stack, agent: str) -> None:
    """Wait until all of the agent's KV is on the disk, as its own, and in the object store."""
    await stack.on_disk(agent)
    client = await stack.client()
    while not (await client.agent(agent)).warm_tokens:  # files that others have are there before it has them
        await asyncio.sleep(0.05)
    while await stack.metric("store", "agentmem_remote_backlog", operation="uploads"):
        await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_gemma3], ids=["llama", "gemma3"])
async def test_a_turn_resumes_from_the_object_store(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    messages = chat(("system", LONG), ("user", "Who told you?"))
    async with hosting(f"tiny={write(tmp_path / 'm')}") as stack:
        client = await stack.client()
        for agent in ("stays", "leaves"):
            await client.turn(agent, messages=messages, **ARGUMENTS)
            await uploaded(stack, agent)
        for agent in ("leaves", "stays"):  # they share all files, and a file goes with the last who has it
            await client.evict(agent, types_pb2.TIER_WARM)
        assert not stack.block_files() and not stack.window_files()
        assert (await client.agent("leaves")).tier == types_pb2.TIER_REMOTE
        listed = await client.agents.ListBlocks(agent_pb2.ListBlocksRequest(key=client.key("leaves")))
        assert {block.tier for block in listed.blocks} == {types_pb2.TIER_REMOTE}
        expected = await client.probe("leaves", append=append("And now?"))
        turn = await client.say("leaves", "And now?", **ARGUMENTS)
        assert turn.started.cache == expected
        assert set(turn.cached) == {"remote"} and turn.cached["remote"] > 400
        assert turn.started.cache.load_bytes > 0
        again = await client.say("stays", "And now?", **ARGUMENTS)
        assert set(again.cached) <= {"hot", "warm"}, "what one has fetched is there for the other"
        assert turn.token_ids == again.token_ids
        assert (
            await stack.metric("worker", "agentmem_prompt_tokens_cached_total", tier="remote") == turn.cached["remote"]
        )


@pytest.mark.slow
async def test_what_the_object_store_lost_is_computed_again(tiny: Path, bucket: s3.Bucket) -> None:
    async with hosting(f"tiny={tiny}") as stack:
        client = await stack.client()
        await client.turn("a", messages=chat(("system", LONG), ("user", "Who told you?")), **ARGUMENTS)
        await uploaded(stack, "a")
        await client.evict("a", types_pb2.TIER_WARM)
        second = sorted(bucket.objects())[1]
        bucket.write(second, b"\0" + bucket.read(second)[1:])
        turn = await client.say("a", "And now?", **ARGUMENTS)
        assert turn.match == "EXTEND" and turn.miss == "IO_ERROR"
        tokens = len((await stack.ledger("a")).token_ids)
        assert turn.cached.get("remote", 0) < tokens
        await uploaded(stack, "a")
        assert len(bucket.objects()) == len(stack.block_files())


async def test_an_agent_is_erased_from_the_object_store(tiny: Path, bucket: s3.Bucket) -> None:
    async with hosting(f"tiny={tiny}") as stack:
        client = await stack.client()
        await client.turn("a", messages=chat(("system", LONG), ("user", "Who told you?")), **ARGUMENTS)
        await uploaded(stack, "a")
        await client.evict("a", types_pb2.TIER_WARM)
        assert bucket.objects()
        await client.delete("a")
        assert not bucket.objects()
        await refused(client.delete("a"), grpc.StatusCode.NOT_FOUND)
