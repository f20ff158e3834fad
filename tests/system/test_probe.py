"""ProbeAgent: what a prompt would reuse is what it then reuses, and asking changes nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentmem.v1 import agent_pb2, types_pb2
from inference_service.turns.pool_writer import PoolWriter
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import Client, Stack, chat
from tests.system.test_changed_models import working
from tests.system.test_hybrid import ARGUMENTS, LONG
from tests.tiny_models import write_gemma3, write_llama


async def probed(client: Client, agent: str, **prompt: object) -> types_pb2.CacheReport:
    request = agent_pb2.ProbeAgentRequest(key=client.key(agent), **prompt)  # type: ignore[arg-type]
    return (await client.agents.ProbeAgent(request, timeout=10)).cache


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_gemma3], ids=["llama", "gemma3"])
async def test_a_probe_tells_what_the_turn_then_says(stacks: SharedStacks, write: Writer) -> None:
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        messages = chat(("system", LONG), ("user", "Who told you?"))
        append = types_pb2.Append(messages=chat(("user", "And now?")))
        new = await probed(client, "a", messages=messages)
        assert (new.match, new.miss_reason, list(new.cached)) == (
            types_pb2.MATCH_NEW,
            types_pb2.MISS_REASON_ABSENT,
            [],
        )
        first = await client.turn("a", messages=messages, **ARGUMENTS)
        assert first.started.cache == new
        for tier in (types_pb2.TIER_HOT, types_pb2.TIER_WARM):
            await stack.on_disk("a")
            if tier == types_pb2.TIER_WARM:
                stack.kill("worker")
                await stack.up("worker")
            before = await client.agent("a")
            for prompt in ({"append": append}, {"messages": messages}, {"prompt": "Nobody knows."}):
                expected = await probed(client, "a", **prompt)
                assert expected == await probed(client, "a", **prompt)
                assert {each.tier for each in expected.cached} <= {tier}
                assert expected.match != types_pb2.MATCH_NEW
            assert await client.agent("a") == before, "nothing has changed"
            expected = await probed(client, "a", append=append)
            turn = await client.turn("a", append=append, **ARGUMENTS)
            assert turn.started.cache == expected
            assert expected.match == types_pb2.MATCH_EXTEND
            assert (expected.load_bytes > 0) == (tier == types_pb2.TIER_WARM)


async def test_a_probe_at_once_after_an_answer_sees_what_the_turn_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is out before the KV is in the pool: a reader waits for it, as the next turn does."""
    keep = PoolWriter.keep

    async def slow(self: PoolWriter, *arguments: Any) -> None:
        await asyncio.sleep(0.3)
        await keep(self, *arguments)

    monkeypatch.setattr(PoolWriter, "keep", slow)
    stack = Stack("tiny=unused")
    await stack.up("store")
    try:
        async with working(stack, write_llama(tmp_path / "m")) as worker:
            await worker.client.turn("b", messages=chat(("user", f"b {LONG}")), **ARGUMENTS)
            assert (await worker.client.agent("b")).tier == types_pb2.TIER_HOT
            await worker.client.turn("a", messages=chat(("user", LONG)), **ARGUMENTS)
            append = types_pb2.Append(messages=chat(("user", "And now?")))
            expected = await probed(worker.client, "a", append=append)
            assert [each.tier for each in expected.cached] == [types_pb2.TIER_HOT]
            turn = await worker.client.turn("a", append=append, **ARGUMENTS)
            assert turn.started.cache == expected
    finally:
        await stack.destroy()
