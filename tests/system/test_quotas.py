"""A namespace that is full, between real processes: what a turn is told, and what makes room."""

import asyncio
import signal
from pathlib import Path

import grpc
import httpx
import pytest

from agentmem.errors import ResourceExhausted, from_rpc
from agentmem.v1 import types_pb2
from tests.system.client import Client
from tests.system.stack import Stack, hosting

ARGUMENTS = {"max_tokens": 4, "sampling": types_pb2.Sampling(ignore_eos=True)}
LONG = "The colour of the boat is green. " * 30
FEW_TURNS = 15_000
"""A quota for the ledgers of some four long turns, and no KV of any."""
KV_OF_ONE_TURN = 150_000
MOST_TURNS = 12


async def refusal(client: Client, agent: str, text: str = LONG) -> ResourceExhausted | None:
    try:
        await client.say(agent, text, **ARGUMENTS)
    except grpc.aio.AioRpcError as error:
        problem = from_rpc(error)
        assert isinstance(problem, ResourceExhausted), problem
        return problem
    return None


async def chat(stack: Stack, agent: str) -> httpx.Response:
    body = {"model": stack.model, "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
        return await http.post("/v1/chat/completions", json=body, headers={"X-Agent-ID": agent})


@pytest.mark.slow
async def test_a_turn_without_room_in_the_quota_is_refused_until_an_agent_is_deleted(tiny: Path) -> None:
    flags = ("--namespace-bytes", str(FEW_TURNS))
    async with hosting(f"tiny={tiny}", "store", "worker", "gateway", store_flags=flags) as stack:
        client = await stack.client("gateway")
        await client.say("a", "The key is in the cellar.", **ARGUMENTS)
        before, ledger = await client.agent("a"), await stack.ledger("a")
        turns = 0
        while (told := await refusal(client, "b")) is None:
            turns += 1
            assert turns < MOST_TURNS
        assert turns and (await client.agent("b")).version.version == turns
        assert (
            "--namespace-bytes" in told.message and "delete agents or workflow runs, or raise the quota" in told.message
        )
        assert told.retry_after > 0

        assert await refusal(client, "a", LONG * 2) is not None
        after = await client.agent("a")
        assert (after.version, await stack.ledger("a")) == (before.version, ledger)
        answer = await chat(stack, "c")
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 0
        assert "quota" in answer.json()["error"]["message"]

        await client.delete("b")
        assert await refusal(client, "a", LONG * 2) is None
        assert (await client.agent("a")).version.version == before.version.version + 1
        assert (await chat(stack, "c")).status_code == 200


async def test_kv_above_the_quota_is_not_kept_and_the_turns_are(tiny: Path) -> None:
    async with hosting(f"tiny={tiny}", store_flags=("--namespaces", f"default={KV_OF_ONE_TURN}")) as stack:
        client = await stack.client()
        await client.say("a", LONG, **ARGUMENTS)
        await stack.on_disk("a")
        for turn in range(3):
            assert (await client.say("b", LONG, **ARGUMENTS)).finished.durable
            assert (await client.agent("b")).version.version == turn + 1
        async with asyncio.timeout(60):
            while "blocks were not written" not in stack.logs("worker"):
                await asyncio.sleep(0.05)
        for name in ("worker", "store"):  # what is being published is over the quota until it is taken back
            stack.kill(name, number=signal.SIGTERM)
        kept = sum(path.stat().st_size for path in stack.block_files())
        assert 0 < kept <= KV_OF_ONE_TURN
        assert "the quota of namespace 'default'" in stack.logs("worker")
