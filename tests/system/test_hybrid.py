"""Every architecture through real processes: resumed equals recomputed, after eviction, restart and a cut.

Of models with windows no more is on disk than these. Recurrent ones have test_recurrent besides. What each kind of
layer keeps and computes is tested beside the engine and the storage, with every model.
"""

import pytest

from agentmem.kv.blockfile import BlockHeader, TensorSpec, parse
from agentmem.v1 import agent_pb2, types_pb2
from inference_service.memory.spacing import STEP
from tests.oracle import Oracle
from tests.system.client import Client, Turn, chat
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import Stack, running
from tests.tiny_hybrids import write_baichuan_m1, write_falcon_h1, write_qwen3_next
from tests.tiny_models import (
    write_deepseek2,
    write_gemma3,
    write_gpt_oss,
    write_llama,
    write_llama_80,
    write_qwen2,
    write_qwen3,
)
from tests.tiny_own_attention import write_deepseek3, write_deepseek32, write_llama4

WINDOW, SLACK = 64, 256

WINDOWED = {"gemma3": write_gemma3, "gpt_oss": write_gpt_oss, "llama4": write_llama4}
RECURRENT = {"qwen3_next": write_qwen3_next, "falcon_h1": write_falcon_h1, "baichuan_m1": write_baichuan_m1}

pytestmark = pytest.mark.sampled(3)
models = pytest.mark.parametrize("write", WINDOWED.values(), ids=WINDOWED)
recurrent = pytest.mark.parametrize("write", RECURRENT.values(), ids=RECURRENT)
trimmed_at_checkpoints = pytest.mark.parametrize("write", [write_qwen3_next, write_baichuan_m1, write_gemma3])


async def restarted(stack: Stack, *agents: str) -> None:
    for agent in agents:
        await stack.on_disk(agent)
    stack.kill("worker")
    await stack.up("worker")


async def cut_answer(client: Client) -> tuple[Turn, Turn]:
    """An agent's answer, and that of the agent a, which a stop string has cut in its middle."""
    arguments = {**ARGUMENTS, "max_tokens": 30}
    free = await client.say("free", LONG, **arguments)
    stop = next(text for text in free.text[len(free.text) // 2 :] if text.strip() and text != "\ufffd")
    return free, await client.say("a", LONG, **arguments, stop=[stop])


async def hot_and_after_a_restart(
    stacks: SharedStacks, write: Writer
) -> list[tuple[BlockHeader, dict[str, TensorSpec]]]:
    """Five turns, each from the end of the one before, the last one after a restart; the checkpoints' files by then."""
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        tokens = len(await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS)))
        assert tokens > WINDOW + SLACK, "longer than what a sliding layer keeps"
        for _ in range(3):
            hot = await client.say("a", "Who told you?", **ARGUMENTS)
            assert hot.cached == {"hot": tokens}
            tokens = len(await check(stack, oracle, hot))
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
@pytest.mark.parametrize("write", [write_gemma3, write_qwen3_next], ids=["gemma3", "qwen3_next"])
async def test_a_damaged_checkpoint_is_only_a_miss(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        tokens = len(await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS)))
        await restarted(stack, "a")
        for number, file in enumerate(stack.window_files()):
            data = bytearray(file.read_bytes())
            data[-100 - number] ^= 1
            file.chmod(0o600)
            file.write_bytes(data)
        turn = await client.say("a", "And now?", **ARGUMENTS)
        assert (turn.match, turn.cached, turn.miss) == ("EXTEND", {}, "CORRUPT")
        assert len(await check(stack, oracle, turn)) > tokens
        assert await stack.metric("store", "agentmem_cache_quarantined_total", reason="digest")


TOKEN_BYTES = {
    write_llama: 320,
    write_qwen2: 320,
    write_qwen3: 320,
    write_deepseek2: 240,
    write_deepseek3: 160,
    write_deepseek32: 320,
    write_llama_80: 576,
}
"""Bytes of a token's Q4 KV in float32."""


@pytest.mark.slow
@pytest.mark.parametrize("write", TOKEN_BYTES, ids=[w.__name__.removeprefix("write_") for w in TOKEN_BYTES])
async def test_evicted_restarted_and_cut(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(directory := stacks.directory(write))
    async with running(f"tiny={directory}", worker_flags=("--pool-bytes", str(3 * 256 * TOKEN_BYTES[write]))) as stack:
        client = await stack.client()
        tokens = len(await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS)))
        assert (await client.agent("a")).tier == types_pb2.TIER_HOT
        await client.say("b", "Nobody knows. " + LONG, **ARGUMENTS)
        await stack.on_disk("a")
        assert (await client.agent("a")).tier == types_pb2.TIER_WARM, "it made room"
        for text in ("Who told you that?", "And now?"):
            warm = await client.say("a", text, **ARGUMENTS)
            assert (warm.match, warm.cached) == ("EXTEND", {"warm": tokens})
            ids = await check(stack, oracle, warm)
            tokens = len(ids)
            await restarted(stack, "a")
        cut = await client.turn("a", token_ids=types_pb2.TokenIds(ids=[*ids[:300], 7, 8, 9]), **ARGUMENTS)
        assert (cut.match, cut.cached) == ("PARTIAL", {"warm": 300})
        await check(stack, oracle, cut)


SENTENCES = 200


def story(edit: int = 0) -> str:
    """Words of 2,700 tokens; of an edited one the sentence of that number is another."""
    told = [f"{i}. The house by the sea is red." for i in range(SENTENCES)]
    if edit:
        told[edit] = f"{edit}. Nobody knows who said that."
    return " ".join(told)


@pytest.mark.slow
@trimmed_at_checkpoints
async def test_an_edit_in_the_middle_goes_on_from_the_checkpoint_before_it(stacks: SharedStacks, write: Writer) -> None:
    """Checkpoints of the tiny models are small, so they are STEP tokens apart. Windows also reach back from the
    checkpoints at a prompt's end, by 256 tokens: the edits are before that.
    """
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        first = await client.turn("a", messages=chat(("user", story())), **ARGUMENTS)
        assert STEP < first.started.cache.prompt_tokens < 2 * STEP
        for edit, tier in ((165, "hot"), (160, "warm")):
            edited = await client.turn("a", messages=chat(("user", story(edit))), **ARGUMENTS)
            assert (edited.match, edited.cached, edited.miss) == ("PARTIAL", {tier: STEP}, "NOT_TRIMMABLE")
            await check(stack, oracle, edited)
            await restarted(stack, "a")
        early = await client.turn("a", messages=chat(("user", story(90))), **ARGUMENTS)
        assert (early.match, early.cached, early.miss) == ("PARTIAL", {}, "NOT_TRIMMABLE"), "there is none so early"


@pytest.mark.slow
@trimmed_at_checkpoints
async def test_another_agent_begins_at_a_checkpoint_and_keeps_it(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        await client.turn("a", messages=chat(("user", story())), **ARGUMENTS)
        await restarted(stack, "a")
        other = await client.turn("b", messages=chat(("user", story(170))), **ARGUMENTS)
        assert (other.match, other.cached) == ("NEW", {"warm": STEP})
        await check(stack, oracle, other, "b")
        await stack.on_disk("b")
        await client.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=client.key("a")), timeout=10)
        ids = [*(await stack.ledger("b")).token_ids[: STEP + 200], 7, 8, 9]
        turn = await client.turn("b", token_ids=types_pb2.TokenIds(ids=ids), **ARGUMENTS)
        assert turn.cached == {"hot": STEP}
