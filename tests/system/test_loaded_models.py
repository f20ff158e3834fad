"""Several models in memory at once, and what makes them come and go: requests, RPCs, times to live, pins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import grpc
import pytest

from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, types_pb2
from tests.system.several import ARGUMENTS, LOADED, TOLERANCE, Several
from tests.system.stack import Client, Turn, chat
from tests.tiny_models import write_llama

TTL = 1.0


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """Two models may be loaded. The registry file has one that expires, and two that are pinned."""
    root = tmp_path_factory.mktemp("models")
    models = {name: write_llama(root / name, seed=seed) for seed, name in enumerate("abcpqt")}
    options = {"p": "pinned = true", "q": "pinned = true", "t": f"ttl = {TTL}"}
    tables = [f'[models.{name}]\nsource = "{name}"\n{options.get(name, "")}' for name in "cpqt"]
    (root / "models.toml").write_text("\n".join(tables))
    several = Several(
        {name: models[name] for name in "ab"},
        ("--models", f"{root}/models.toml", "--loaded-models", "2"),
        hosted=True,
    )
    several.directories = models
    asyncio.run(several.stack.up())
    yield several
    several.close()


async def generate(client: Client, agent: str, order: list[str], tokens: int) -> Turn:
    """A turn whose deltas are noted in the order in which they come."""
    request = client.request(agent, messages=chat(("user", f"Who is {agent}?")), **{**ARGUMENTS, "max_tokens": tokens})
    turn = Turn()
    async for event in client.inference.Generate(request, timeout=120):
        if event.HasField("delta"):
            order.append(client.model)
            turn.token_ids += event.delta.token_ids
            turn.logprobs += [token.logprob for token in event.delta.logprobs]
        elif event.HasField("finished"):
            turn.finished = event.finished
    return turn


@pytest.mark.slow
async def test_two_models_generate_at_a_time_and_a_third_takes_the_place_of_the_one_used_longest_ago(
    several: Several,
) -> None:
    order: list[str] = []
    a, b, c = [await several.on(name) for name in "abc"]
    for client in (a, b):
        await client.turn("first", messages=chat(("user", "Hello?")), max_tokens=1)
    assert await several.loaded() == ["a", "b"]
    before = await several.swaps()
    turns = await asyncio.gather(*(generate(client, "both", order, 300) for client in (a, b)))
    assert await several.swaps() == before
    changes = sum(one != other for one, other in pairwise(order))
    assert changes > 4, "they took turns"
    for client, turn, other in ((a, turns[0], "b"), (b, turns[1], "a")):
        assert await several.difference("both", client.model, turn) < TOLERANCE
        assert await several.difference("both", client.model, turn, several.directories[other]) > 100 * TOLERANCE
    await a.say("both", "And now?", max_tokens=1)
    turn = await c.turn("both", messages=chat(("user", "Hello?")), **ARGUMENTS)
    assert await several.difference("both", "c", turn) < TOLERANCE
    assert await several.loaded() == ["a", "c"], "a was used after b"


async def test_a_load_tells_how_far_it_is(several: Several) -> None:
    await several.unload("b")
    told = await several.load("b")
    stages = list(dict.fromkeys(at.stage for at in told))
    assert [stage for stage in stages if stage not in ("wait", "fetch")] == ["read", "self-test", "pool", "ready"]
    assert stages[0] == "wait"
    for stage in stages:
        shares = [at.progress for at in told if at.stage == stage]
        assert shares == sorted(shares) and all(0 <= share <= 1 for share in shares)
    assert told[-1].model.state == LOADED and told[-1].model.memory.pool_bytes > 0
    assert [at.stage for at in await several.load("b")] == ["ready"]


@pytest.mark.slow
async def test_an_unload_waits_for_running_requests_and_later_ones_load_again(several: Several) -> None:
    a, order = await several.on("a"), []
    await a.turn("other", messages=chat(("user", "Hello?")), max_tokens=1)
    running = asyncio.create_task(generate(a, "runs", order, 500))
    async with asyncio.timeout(60):
        while not order:
            await asyncio.sleep(0.01)
    unloading = asyncio.create_task(several.unload("a"))
    async with asyncio.timeout(60):
        while (await several.model("a")).state != model_pb2.MODEL_STATE_DRAINING:
            assert not unloading.done(), "it did not wait"
            await asyncio.sleep(0.005)
    before = len((await several.stack.ledger("other", "a")).token_ids)
    later = asyncio.create_task(a.say("other", "And now?", **ARGUMENTS))
    turn = await running
    assert len(turn.token_ids) == 500
    assert await unloading > 0
    assert (await later).cached == {"warm": before}
    assert await several.difference("other", "a", await later) < TOLERANCE
    assert await several.difference("runs", "a", turn) < TOLERANCE
    assert await several.stack.metric("worker", "agentmem_model_unloads_total", model_id="a", reason="request") >= 1


@pytest.mark.slow
async def test_a_model_leaves_when_its_time_is_over_and_comes_back_for_a_request(several: Several) -> None:
    t = await several.on("t")
    await t.turn("agent", messages=chat(("user", "Hello?")), **ARGUMENTS)
    tokens = len((await several.stack.ledger("agent", "t")).token_ids)
    described = await several.model("t")
    assert (described.ttl.ToNanoseconds(), described.pinned) == (TTL * 1e9, False)
    async with asyncio.timeout(60):
        while "t" in await several.loaded():
            await asyncio.sleep(0.1)
    assert await several.stack.metric("worker", "agentmem_model_unloads_total", model_id="t", reason="ttl") == 1
    turn = await t.say("agent", "And now?", **ARGUMENTS)
    assert turn.cached == {"warm": tokens}
    assert await several.difference("agent", "t", turn) < TOLERANCE


@pytest.mark.slow
async def test_a_pinned_model_makes_room_for_nobody_but_leaves_by_request(several: Several) -> None:
    try:
        for name in "pab":
            client = await several.on(name)
            await client.turn("pins", messages=chat(("user", "Hello?")), max_tokens=1)
        assert (await several.model("p")).pinned
        assert await several.loaded() == ["b", "p"], "p was used longest ago"
        await several.load("q")
        assert await several.loaded() == ["p", "q"]
        with pytest.raises(grpc.aio.AioRpcError, match="'p', 'q' are pinned") as caught:
            await client.turn("pins", messages=chat(("user", "Hello?")), max_tokens=1)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert await several.unload("p") > 0
        await client.say("pins", "And now?", max_tokens=1)
        assert await several.loaded() == ["b", "q"]
    finally:
        for name in "pq":
            await several.unload(name)


@pytest.mark.slow
async def test_a_look_at_what_is_not_loaded_loads_nothing(several: Several) -> None:
    """Probes and prefetches are refused, and what needs only the store or the tokenizer is answered."""
    c = await several.on("c")
    turn = await c.turn("look", messages=chat(("user", "Hello?")), **ARGUMENTS)
    await several.unload("c")
    before, key = await several.swaps(), c.key("look")
    append = types_pb2.Append(messages=chat(("user", "And now?")))
    for ask in (
        c.agents.ProbeAgent(agent_pb2.ProbeAgentRequest(key=key, append=append), timeout=10),
        c.agents.PrefetchAgent(agent_pb2.PrefetchAgentRequest(key=key), timeout=10),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="is not loaded, and this would load none") as caught:
            await ask
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    counted = await c.inference.CountTokens(inference_pb2.CountTokensRequest(key=key, append=append), timeout=30)
    assert counted.tokens > 0
    fork = agent_pb2.ForkAgentRequest(key=key, new_agent_id="forked")
    assert (await c.agents.ForkAgent(fork, timeout=30)).agent.tokens == (await c.agent("look")).tokens
    await c.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key), timeout=30)
    assert await several.swaps() == before and "c" not in await several.loaded()
    tokens = len((await several.stack.ledger("forked", "c")).token_ids)
    turn = await c.say("forked", "And now?", **ARGUMENTS)
    assert turn.cached == {"warm": tokens}
    assert await several.difference("forked", "c", turn) < TOLERANCE
