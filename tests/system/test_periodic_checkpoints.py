"""A long prompt leaves checkpoints on its way: who comes back to its middle computes little of it again.

The tiny models' checkpoints are small beside their blocks, so they are STEP tokens apart.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from agentmem.v1 import agent_pb2, types_pb2
from inference_service.memory.spacing import STEP
from tests.oracle import Oracle
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import Client, Turn, chat
from tests.system.test_hybrid import ARGUMENTS, check, restarted
from tests.system.test_probe import probed
from tests.tiny_hybrids import write_baichuan_m1, write_qwen3_next
from tests.tiny_models import write_gemma3

CONTEXT = 8192


def long_qwen3_next(directory: Path) -> Path:
    return write_qwen3_next(directory, context=CONTEXT)


def long_baichuan_m1(directory: Path) -> Path:
    return write_baichuan_m1(directory, context=CONTEXT)


def long_gemma3(directory: Path) -> Path:
    return write_gemma3(directory, context=CONTEXT)


LONG_MODELS = {"qwen3_next": long_qwen3_next, "baichuan_m1": long_baichuan_m1, "gemma3": long_gemma3}
models = pytest.mark.parametrize("write", LONG_MODELS.values(), ids=LONG_MODELS)


def story(edit: int = 0) -> str:
    """Words of 5,000 tokens; of an edited one the sentence of that number is another."""
    told = [f"{i}. The house by the sea is red." for i in range(280)]
    if edit:
        told[edit] = f"{edit}. Nobody knows who said that."
    return " ".join(told)


async def tell(client: Client, agent: str, text: str) -> Turn:
    return await client.turn(agent, messages=chat(("user", text)), **ARGUMENTS)


async def cut(client: Client, agent: str, ids: Sequence[int]) -> Turn:
    return await client.turn(agent, token_ids=types_pb2.TokenIds(ids=[*ids, 7, 8, 9]), **ARGUMENTS)


@models
async def test_an_edit_in_the_middle_goes_on_from_the_checkpoint_before_it(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write) as stack:
        client = await stack.client()
        tokens = await check(stack, oracle, await tell(client, "a", story()))
        assert 2 * STEP < tokens < 3 * STEP
        for edit, tier in ((270, "hot"), (170, "warm")):
            edited = await tell(client, "a", story(edit))
            await check(stack, oracle, edited)
            assert (edited.match, edited.miss) == ("PARTIAL", "NOT_TRIMMABLE")
            (at,) = edited.cached.values()
            assert edited.cached == {tier: at}
            assert at in (STEP, 2 * STEP)
            prompt = edited.started.cache.prompt_tokens
            share = edit / 280
            assert share * prompt - at < STEP + 0.1 * prompt, "the one before the edit, at most STEP tokens"
            await restarted(stack, "a")


@models
async def test_tokens_that_cut_the_ledger_go_on_from_the_checkpoint_before(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write) as stack:
        client = await stack.client()
        await tell(client, "a", story())
        ids = list((await stack.ledger("a")).token_ids)
        for at, resumed, tier in ((2 * STEP + 300, 2 * STEP, "hot"), (STEP + 500, STEP, "warm")):
            probe = await probed(client, "a", token_ids=types_pb2.TokenIds(ids=[*ids[:at], 7, 8, 9]))
            turn = await cut(client, "a", ids[:at])
            assert turn.started.cache == probe
            assert (turn.match, turn.cached, turn.miss) == ("PARTIAL", {tier: resumed}, "NOT_TRIMMABLE")
            await check(stack, oracle, turn)
            await restarted(stack, "a")
        before = await cut(client, "a", ids[: STEP - 10])
        assert (before.cached, before.miss) == ({}, "NOT_TRIMMABLE"), "there is none so early"


@models
async def test_another_agent_begins_at_a_checkpoint_and_keeps_it(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write) as stack:
        client = await stack.client()
        await tell(client, "a", story())
        await restarted(stack, "a")
        other = await tell(client, "b", story(170))
        assert (other.match, other.cached) == ("NEW", {"warm": STEP})
        tokens = await check(stack, oracle, other, "b")
        await stack.on_disk("b")
        request = agent_pb2.DeleteAgentRequest(key=client.key("a"))
        await client.agents.DeleteAgent(request, timeout=10)
        ids = list((await stack.ledger("b")).token_ids)
        for at, resumed in ((tokens - 500, 2 * STEP), (STEP + 500, STEP)):
            turn = await cut(client, "b", ids[:at])
            assert sum(turn.cached.values()) == resumed
            await check(stack, oracle, turn, "b")


async def test_many_short_turns_leave_ends_that_serve_as_well(stacks: SharedStacks) -> None:
    write = long_qwen3_next
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write) as stack:
        client, ends = await stack.client(), []
        while not ends or ends[-1] < 5000:
            await client.say("a", "Who told you that? Nobody knows. " * 30, **ARGUMENTS)
            ends.append(len((await stack.ledger("a")).token_ids))
        await stack.on_disk("a")
        ids = list((await stack.ledger("a")).token_ids)
        turn = await cut(client, "a", ids[: ends[-1] - STEP])
        resumed = sum(turn.cached.values())
        longest = max(after - before for before, after in pairwise(ends))
        assert ends[-1] - 2 * STEP - longest < resumed < ends[-1] - STEP
        await check(stack, oracle, turn)
