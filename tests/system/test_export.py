"""Agents that move: a file from one data directory goes on in another, bit for bit, or is refused with the reason."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import load_file, save_file

from agentmem.v1 import agent_pb2, types_pb2
from tests.oracle import Oracle
from tests.system.files import contents, exported, forged, imported, messages, refusal
from tests.system.shared import Writer
from tests.system.stack import Client, Stack, Turn, running
from tests.system.test_hybrid import ARGUMENTS, LONG, check
from tests.tiny_hybrids import write_baichuan_m1, write_qwen3_next
from tests.tiny_models import write_gpt_oss, write_llama
from tests.tiny_own_attention import write_deepseek32
from tests.tiny_states import write_mamba2

MODELS = [write_gpt_oss, write_qwen3_next, write_baichuan_m1, write_mamba2]
"""That resume from checkpoints: windows, states beside full attention, both, and states alone."""


async def told(client: Client, agent: str = "a") -> None:
    for text in (LONG, "Größe, 😀👩‍👩‍👧", "Who told you?"):
        await client.say(agent, text, **ARGUMENTS)


def same(one: Turn, two: Turn) -> bool:
    return one.text == two.text and one.token_ids == two.token_ids and one.logprobs == two.logprobs


@pytest.mark.slow
@pytest.mark.kills
async def test_it_goes_on_elsewhere_as_it_would_here(stack: Stack, client: Client, tiny: Path) -> None:
    await told(client)
    file = await exported(client, "a")
    ledger = await stack.ledger("a")
    async with running(f"renamed={tiny}") as elsewhere:
        there = await elsewhere.client()
        agent = await imported(there, file, "b", "renamed")
        tokens = len(ledger.token_ids)
        assert (agent.key.agent_id, agent.key.model_id, agent.version.version) == ("b", "renamed", 3)
        assert (agent.tokens, agent.turns, agent.warm_tokens, agent.tier) == (tokens, 3, tokens, types_pb2.TIER_WARM)
        assert await elsewhere.ledger("b") == ledger
        assert tensors_of(stack) == tensors_of(elsewhere)
        again = await exported(there, "b")
        assert renamed(again) == renamed(file), "it comes out as it went in"
        stack.kill("worker")
        await stack.up("worker")
        here_turn = await client.say("a", "And now?", **ARGUMENTS)
        there_turn = await there.say("b", "And now?", **ARGUMENTS)
        assert here_turn.cached == there_turn.cached == {"warm": tokens}
        assert here_turn.match == there_turn.match == "EXTEND"
        assert same(here_turn, there_turn)
        after = list((await elsewhere.ledger("b")).token_ids)
        wanted = Oracle(tiny).logprobs_of(after, len(after) - len(there_turn.token_ids))
        assert np.abs(wanted - np.array(there_turn.logprobs)).max() < 1e-3
        assert len(set(there_turn.token_ids)) > 2, "an output that does not vary proves nothing"


def renamed(file: bytes) -> bytes:
    return forged(file, lambda found: found.head.ClearField("key"))


def tensors_of(stack: Stack) -> dict[str, dict[str, bytes]]:
    """The tensors of all published blocks, by file name: the bytes are the same wherever the namespace is."""
    files = [*stack.block_files(), *stack.window_files()]
    named = {file.name + file.parts[-3]: load_safetensors(file.read_bytes()) for file in files}
    return {name: {key: array.tobytes() for key, array in file.items()} for name, file in named.items()}


async def centred_otherwise(stack: Stack, factor: float) -> None:
    """As another kind of device would have measured the means."""
    (file,) = (stack.data / "worker" / "calibration").iterdir()
    stack.kill("worker")
    means = {"k", "v"}
    changed = {
        name: side * np.float16(factor) if name.partition(".")[0] in means else side
        for name, side in load_file(file).items()
    }
    save_file(changed, file)
    await stack.up("worker")


@pytest.mark.slow
async def test_kv_that_is_centred_otherwise_is_left_out_and_its_means_are_taken_where_there_are_none(
    tiny: Path, tmp_path: Path
) -> None:
    other = write_llama(tmp_path / "other", seed=7)
    flags = {"worker_flags": ("--model", f"tiny={tiny}")}
    async with (
        running(f"tiny={tiny}") as stack,
        running(f"tiny={tiny}") as with_means,
        running(f"other={other}", **flags) as without,
    ):
        client = await stack.client()
        await centred_otherwise(stack, 1.005)
        await told(client)
        file = await exported(client, "a")
        tokens = contents(file).tokens

        there = await with_means.client()
        key = types_pb2.AgentKey(namespace="default", agent_id="b")
        answer = await there.agents.ImportAgent(messages(file, key), timeout=60)
        assert "packed with other means or bases" in answer.kv_misfit
        assert (answer.agent.tokens, answer.agent.warm_tokens) == (tokens, 0)
        assert await with_means.ledger("b") == await stack.ledger("a")
        turn = await there.say("b", "And now?", **ARGUMENTS)
        assert (turn.match, turn.cached) == ("EXTEND", {})
        after = list((await with_means.ledger("b")).token_ids)
        wanted = Oracle(tiny).logprobs_of(after, len(after) - len(turn.token_ids))
        assert np.abs(wanted - np.array(turn.logprobs)).max() < 1e-3

        there = await without.client(model="tiny")
        answer = await there.agents.ImportAgent(messages(file, key), timeout=60)
        assert not answer.kv_misfit
        assert answer.agent.warm_tokens == tokens
        stack.kill("worker")
        await stack.up("worker")
        assert same(await client.say("a", "And now?", **ARGUMENTS), await there.say("b", "And now?", **ARGUMENTS))


@pytest.mark.slow
async def test_an_indexers_keys_go_along(tmp_path: Path) -> None:
    """They are full-attention KV of another shape than the latents beside them."""
    directory = write_deepseek32(tmp_path / "m")
    async with running(f"tiny={directory}") as stack, running(f"tiny={directory}") as elsewhere:
        client, there = await stack.client(), await elsewhere.client()
        await told(client)
        file = await exported(client, "a")
        await imported(there, file, "b")
        here_turn = await client.say("a", "And now?", **ARGUMENTS)
        there_turn = await there.say("b", "And now?", **ARGUMENTS)
        assert there_turn.cached == {"warm": contents(file).tokens}
        assert same(here_turn, there_turn)
        await check(elsewhere, Oracle(directory), there_turn, "b")


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", MODELS)
async def test_a_hybrid_model_goes_on_from_its_checkpoint(write: Writer, tmp_path: Path) -> None:
    directory = write(tmp_path / "m")
    async with running(f"tiny={directory}") as stack, running(f"tiny={directory}") as elsewhere:
        client, there = await stack.client(), await elsewhere.client()
        await told(client)
        file = await exported(client, "a")
        tokens = contents(file).tokens
        assert tokens > 64 + 256, "longer than what a sliding layer keeps"
        assert contents(file).kv_tokens == tokens
        await imported(there, file, "b")
        stack.kill("worker")
        await stack.up("worker")
        here_turn = await client.say("a", "And now?", **ARGUMENTS)
        there_turn = await there.say("b", "And now?", **ARGUMENTS)
        assert here_turn.cached == there_turn.cached == {"warm": tokens}
        assert same(here_turn, there_turn)
        await check(elsewhere, Oracle(directory), there_turn, "b")
        assert contents(await exported(there, "b")).kv_tokens > tokens, "it waits until all is on disk"
        for window in elsewhere.window_files():
            window.unlink()
        assert not contents(await exported(there, "b")).files, "blocks alone are of no use"


@pytest.mark.slow
@pytest.mark.kills
async def test_an_import_that_is_broken_off_leaves_nothing(stack: Stack, client: Client) -> None:
    await told(client)
    file = await exported(client, "a")
    stack.kill("worker", "store")
    await stack.up()

    async def half() -> AsyncIterator[agent_pb2.ImportAgentRequest]:
        for message in list(messages(file, client.key("b"), 1000))[:-1]:
            yield message
        await asyncio.Event().wait()

    call = client.agents.ImportAgent(half())
    await asyncio.sleep(1)
    call.cancel()
    for _ in range(6):
        broken = client.agents.ImportAgent(half())
        await asyncio.sleep(0.1)
        broken.cancel()
    assert (await imported(client, file, "b")).tokens > 0, "the others' places are free again"
    listed = await client.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default"))
    assert [agent.key.agent_id for agent in listed.agents] == ["a", "b"]


async def test_through_the_gateway(stack: Stack) -> None:
    await stack.renew("gateway")
    client = await stack.client("gateway")
    await told(client)
    call = client.agents.ExportAgent(
        agent_pb2.ExportAgentRequest(key=types_pb2.AgentKey(agent_id="a", model_id="tiny"))
    )
    file = b"".join([response.chunk async for response in call])
    assert (await imported(client, file, "b", namespace="")).key == client.key("b"), "the caller's namespace"
    turn = await client.say("b", "And now?", **ARGUMENTS)
    assert sum(turn.cached.values()) == contents(file).tokens
    assert (await refusal(client, file, "c", namespace="theirs"))[0] == "PERMISSION_DENIED"
    theirs = forged(file, lambda found: setattr(found.head.key, "namespace", "theirs"))
    assert (await refusal(client, theirs, "c", namespace=""))[0] == "PERMISSION_DENIED"
    assert (await refusal(client, file + b"x", namespace=""))[0] == "ALREADY_EXISTS", "before it is read"
    assert (await refusal(client, file[:-1], "c", namespace=""))[0] == "DATA_LOSS"
