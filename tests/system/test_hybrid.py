"""Models with sliding windows: right hot, warm and wherever they resume; never more on disk than their windows.

And what holds for all that resume from checkpoints, recurrent ones too; the rest of those is in test_recurrent. What
each kind of layer keeps and computes is tested beside the engine and the storage, with every model.
"""

import numpy as np
import pytest

from agentmem.kv.blockfile import BlockHeader, TensorSpec, parse
from agentmem.v1 import types_pb2
from tests.oracle import Oracle
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import Client, Stack, Turn, chat
from tests.tiny_hybrids import write_baichuan_m1, write_falcon_h1, write_qwen3_next
from tests.tiny_models import write_gemma3, write_gpt_oss
from tests.tiny_own_attention import write_llama4

ARGUMENTS = {"max_tokens": 8, "top_logprobs": 0, "sampling": types_pb2.Sampling(ignore_eos=True)}
LONG = "The colour of the boat is green. " * 45
WINDOW, SLACK = 64, 256

WINDOWED = {"gemma3": write_gemma3, "gpt_oss": write_gpt_oss, "llama4": write_llama4}
RECURRENT = {"qwen3_next": write_qwen3_next, "falcon_h1": write_falcon_h1, "baichuan_m1": write_baichuan_m1}

pytestmark = pytest.mark.sampled(3)
models = pytest.mark.parametrize("write", WINDOWED.values(), ids=WINDOWED)
recurrent = pytest.mark.parametrize("write", RECURRENT.values(), ids=RECURRENT)
all_kinds = pytest.mark.parametrize("write", [*WINDOWED.values(), *RECURRENT.values()], ids=[*WINDOWED, *RECURRENT])


async def check(stack: Stack, oracle: Oracle, turn: Turn, agent: str = "a") -> int:
    """The turn's log-probabilities are those of a recomputation; the ledger's length."""
    token_ids = list((await stack.ledger(agent)).token_ids)
    wanted = oracle.logprobs_of(token_ids, len(token_ids) - len(turn.token_ids))
    assert np.abs(wanted - np.array(turn.logprobs)).max() < 1e-3
    return len(token_ids)


async def restarted(stack: Stack, *agents: str) -> None:
    for agent in agents:
        await stack.on_disk(agent)
    stack.kill("worker")
    await stack.up("worker")


async def hot_and_after_a_restart(
    stacks: SharedStacks, write: Writer
) -> list[tuple[BlockHeader, dict[str, TensorSpec]]]:
    """Five turns, each from the end of the one before, the last one after a restart; the checkpoints' files by then."""
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        tokens = await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS))
        assert tokens > WINDOW + SLACK, "longer than what a sliding layer keeps"
        for _ in range(3):
            hot = await client.say("a", "Who told you?", **ARGUMENTS)
            assert hot.cached == {"hot": tokens}
            tokens = await check(stack, oracle, hot)
        await restarted(stack, "a")
        files = [parse(data, len(data)) for data in (file.read_bytes() for file in stack.window_files())]
        assert len(files) == 3, "the first, that before the last cue, and the last"
        assert all(header.window for header, _ in files)
        warm = await client.say("a", "And now?", **ARGUMENTS)
        assert (warm.match, warm.cached) == ("EXTEND", {"warm": tokens})
        await check(stack, oracle, warm)
        return files


@pytest.mark.essential("sliding windows resume exactly")
@pytest.mark.slow("gpt_oss", "llama4")
@models
async def test_hot_and_after_a_restart(stacks: SharedStacks, write: Writer) -> None:
    for header, _ in await hot_and_after_a_restart(stacks, write):
        assert header.token_count <= WINDOW + SLACK


@pytest.mark.slow
@all_kinds
async def test_another_agent_shares_the_system_prompt(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write) as stack:
        client = await stack.client()
        await client.turn("a", messages=chat(("system", LONG), ("user", "Who told you?")), **ARGUMENTS)
        await stack.on_disk("a")
        other = await client.turn("b", messages=chat(("system", LONG), ("user", "Nobody knows.")), **ARGUMENTS)
        assert other.match == "NEW"
        assert sum(other.cached.values()) in (256, 512), "whole blocks of what both have in common"
        await check(stack, oracle, other, "b")


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_gemma3, write_qwen3_next], ids=["gemma3", "qwen3_next"])
async def test_a_damaged_checkpoint_is_only_a_miss(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        tokens = await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS))
        await restarted(stack, "a")
        for number, file in enumerate(stack.window_files()):
            data = bytearray(file.read_bytes())
            data[-100 - number] ^= 1
            file.chmod(0o600)
            file.write_bytes(data)
        turn = await _say_again(client)
        assert (turn.match, turn.cached, turn.miss) == ("EXTEND", {}, "CORRUPT")
        assert await check(stack, oracle, turn) > tokens
        assert await stack.metric("store", "agentmem_cache_quarantined_total", reason="digest")


async def _say_again(client: Client) -> Turn:
    return await client.say("a", "And now?", **ARGUMENTS)
