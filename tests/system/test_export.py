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
from tests.system.client import Client, Turn
from tests.system.files import contents, exported, forged, imported, messages, refusal
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.shared import Writer
from tests.system.stack import Stack, hosting, running
from tests.tiny_hybrids import write_baichuan_m1, write_qwen3_next
from tests.tiny_models import write_gpt_oss, write_llama
from tests.tiny_own_attention import write_deepseek32
from tests.tiny_states import write_mamba2

MODELS = [write_gpt_oss, write_qwen3_next, write_baichuan_m1, write_mamba2, write_deepseek32]
"""Models that resume from checkpoints: windows, states beside full attention, both, and states alone; and one with keys
of an indexer, which are full-attention KV of another shape than the latents beside them."""


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
        await check(elsewhere, Oracle(tiny), there_turn, "b")
        assert len(set(there_turn.token_ids)) > 2, "an output that does not vary proves nothing"


def renamed(file: bytes) -> bytes:
    return forged(file, lambda found: found.head.ClearField("key"))


def tensors_of(stack: Stack) -> dict[str, dict[str, bytes]]:
    """The tensors of all published blocks, by file name: the bytes are the same wherever the namespace is."""
    files = [*stack.block_files(), *stack.window_files()]
    named = {file.name + file.parts[-3]: load_safetensors(file.read_bytes()) for file in files}
    return {name: {key: array.tobytes() for key, array in file.items()} for name, file in named.items()}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", MODELS)
async def test_other_models_go_on_from_their_checkpoints(write: Writer, tmp_path: Path) -> None:
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
        for window in (windows := elsewhere.window_files()):
            window.unlink()
        assert bool(windows) != bool(contents(await exported(there, "b")).files), "blocks alone are of no use"


async def centred_otherwise(stack: Stack) -> None:
    """As another kind of device would have measured the means."""
    (file,) = (stack.data / "worker" / "calibration").iterdir()
    stack.kill("worker")
    sides = load_file(file)
    means = {name: side * np.float16(1.005) for name, side in sides.items() if name.partition(".")[0] in {"k", "v"}}
    save_file(sides | means, file)
    await stack.up("worker")


@pytest.mark.slow
async def test_kv_under_other_means_is_left_out_and_its_means_are_taken_where_there_are_none(
    stack: Stack, client: Client, tiny: Path, tmp_path: Path
) -> None:
    flags = ("--model", f"tiny={tiny}")
    async with (
        running(f"tiny={tiny}") as otherwise,
        hosting(f"other={write_llama(tmp_path / 'other', seed=7)}", worker_flags=flags) as without,
    ):
        await centred_otherwise(otherwise)
        source = await otherwise.client()
        await told(source)
        file = await exported(source, "a")
        tokens = contents(file).tokens

        key = types_pb2.AgentKey(namespace="default", agent_id="b")
        answer = await client.agents.ImportAgent(messages(file, key), timeout=60)
        assert "packed with other means or bases" in answer.kv_misfit
        assert (answer.agent.tokens, answer.agent.warm_tokens) == (tokens, 0)
        assert await stack.ledger("b") == await otherwise.ledger("a")
        turn = await client.say("b", "And now?", **ARGUMENTS)
        assert (turn.match, turn.cached) == ("EXTEND", {})
        await check(stack, Oracle(tiny), turn, "b")

        there = await without.client(model="tiny")
        answer = await there.agents.ImportAgent(messages(file, key), timeout=60)
        assert (answer.kv_misfit, answer.agent.warm_tokens) == ("", tokens)
        otherwise.kill("worker")
        await otherwise.up("worker")
        turns = [await source.say("a", "And now?", **ARGUMENTS), await there.say("b", "And now?", **ARGUMENTS)]
        assert [turn.cached for turn in turns] == [{"warm": tokens}] * 2 and same(*turns)


@pytest.mark.slow
async def test_imports_that_are_broken_off_leave_nothing(stack: Stack, client: Client) -> None:
    await told(client)
    file = await exported(client, "a")

    async def half() -> AsyncIterator[agent_pb2.ImportAgentRequest]:
        for message in list(messages(file, client.key("b"), 1000))[:-1]:
            yield message
        await asyncio.Event().wait()

    for _ in range(7):
        broken = client.agents.ImportAgent(half())
        await asyncio.sleep(0.2)
        broken.cancel()
    assert (await imported(client, file, "b")).tokens > 0, "the others' places are free again"
    assert [agent.key.agent_id for agent in await client.listed()] == ["a", "b"]


async def test_through_the_gateway(stack: Stack) -> None:
    await stack.renew("gateway")
    client = await stack.client("gateway")
    await told(client)
    file = await exported(client, "a")
    assert (await imported(client, file, "b", namespace="")).key == client.key("b"), "the caller's namespace"
    turn = await client.say("b", "And now?", **ARGUMENTS)
    assert sum(turn.cached.values()) == contents(file).tokens
    assert (await refusal(client, file, "c", namespace="theirs"))[0] == "PERMISSION_DENIED"
    theirs = forged(file, lambda found: setattr(found.head.key, "namespace", "theirs"))
    assert (await refusal(client, theirs, "c", namespace=""))[0] == "PERMISSION_DENIED"
    assert (await refusal(client, file + b"x", namespace=""))[0] == "ALREADY_EXISTS", "before it is read"
    assert (await refusal(client, file[:-1], "c", namespace=""))[0] == "DATA_LOSS"
