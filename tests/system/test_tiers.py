"""Between the tiers, in real processes: prefetched ahead of a turn, evicted from memory and from disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from tests.oracle import Oracle
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import Client, Stack, Turn
from tests.tiny_models import write_gemma3, write_llama

ARGUMENTS = {"max_tokens": 8, "top_logprobs": 0, "sampling": types_pb2.Sampling(ignore_eos=True)}
LONG = "The colour of the boat is green. " * 60
WRITERS = {"llama": write_llama, "gemma3": write_gemma3}


@pytest.fixture
def write(request: pytest.FixtureRequest) -> Writer:
    return WRITERS[getattr(request, "param", "llama")]


@pytest.fixture
def directory(stacks: SharedStacks, write: Writer) -> Path:
    return stacks.directory(write)


@pytest.fixture
async def stack(stacks: SharedStacks, write: Writer) -> AsyncIterator[Stack]:
    async with stacks.using(write, killable=True) as stack:
        yield stack


@pytest.fixture
async def client(stack: Stack) -> Client:
    return await stack.client()


async def prefetch(client: Client, agent: str = "a") -> tuple[int, int]:
    response = await client.agents.PrefetchAgent(agent_pb2.PrefetchAgentRequest(key=client.key(agent)), timeout=30)
    return response.tokens, response.bytes


async def evict(client: Client, tier: types_pb2.Tier.ValueType, agent: str = "a") -> int:
    request = agent_pb2.EvictAgentRequest(key=client.key(agent), tier=tier)
    return (await client.agents.EvictAgent(request, timeout=30)).freed_bytes


async def check(stack: Stack, directory: Path, turn: Turn) -> None:
    token_ids = list((await stack.ledger("a")).token_ids)
    wanted = Oracle(directory).logprobs_of(token_ids, len(token_ids) - len(turn.token_ids))
    assert np.abs(wanted - np.array(turn.logprobs)).max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITERS, indirect=True)
async def test_what_was_prefetched_after_a_restart_is_hot(stack: Stack, client: Client, directory: Path) -> None:
    await client.say("a", LONG, **ARGUMENTS)
    tokens = (await client.agent("a")).tokens
    assert await prefetch(client) == (tokens, 0), "it is there"
    await stack.on_disk("a")
    stack.kill("worker", "store")
    await stack.up()
    assert (await client.agent("a")).tier == types_pb2.TIER_WARM
    prefetched, size = await prefetch(client)
    assert prefetched == tokens and size > tokens * 100
    assert (await client.agent("a")).tier == types_pb2.TIER_HOT
    assert await prefetch(client) == (tokens, 0)
    turn = await client.say("a", "Who told you?", **ARGUMENTS)
    assert (turn.match, turn.cached) == ("EXTEND", {"hot": tokens})
    await check(stack, directory, turn)


async def test_evictions_go_down_the_tiers_and_the_ledger_heals_them(
    stack: Stack, client: Client, directory: Path
) -> None:
    await client.say("a", LONG, **ARGUMENTS)
    tokens = (await client.agent("a")).tokens
    await stack.on_disk("a")
    assert await evict(client, types_pb2.TIER_HOT) > 0
    assert await evict(client, types_pb2.TIER_HOT) == 0
    turn = await client.say("a", "Who told you?", **ARGUMENTS)
    assert turn.cached == {"warm": tokens}
    await stack.on_disk("a")
    assert await evict(client, types_pb2.TIER_WARM) > 0
    agent = await client.agent("a")
    assert (agent.tier, agent.warm_bytes) == (types_pb2.TIER_NONE, 0)
    assert not list((stack.data / "blocks").rglob("*.safetensors"))
    assert await prefetch(client) == (0, 0), "there is nothing to fetch"
    turn = await client.say("a", "And the house?", **ARGUMENTS)
    assert (turn.match, turn.cached, turn.miss) == ("EXTEND", {}, "EVICTED")
    await check(stack, directory, turn)
    await stack.on_disk("a")
    assert (await client.agent("a")).warm_bytes > 0


@pytest.mark.slow
async def test_a_damaged_file_ends_a_prefetch_before_it(stack: Stack, client: Client, directory: Path) -> None:
    await client.say("a", LONG, **ARGUMENTS)
    tokens = (await client.agent("a")).tokens
    await stack.on_disk("a")
    stack.kill("worker", "store")
    for path in sorted((stack.data / "blocks").rglob("*.safetensors"), key=lambda path: path.stat().st_size)[:1]:
        path.write_bytes(path.read_bytes()[:-4] + b"lies")
    await stack.up()
    prefetched, _ = await prefetch(client)
    assert prefetched < tokens
    turn = await client.say("a", "Who told you?", **ARGUMENTS)
    assert turn.match == "EXTEND" and sum(turn.cached.values()) == prefetched
    await check(stack, directory, turn)


async def test_prefetches_of_nobody_and_to_other_tiers_are_refused(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await prefetch(client, "nobody")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    warm = agent_pb2.PrefetchAgentRequest(key=client.key("a"), tier=types_pb2.TIER_WARM)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.agents.PrefetchAgent(warm, timeout=30)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
