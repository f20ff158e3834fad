"""Models with recurrent layers: right hot, warm and where an answer was cut or is made again."""

import asyncio
from typing import Any

import numpy as np
import pytest

from agentmem.kv.blockfile import STATE
from inference_service.storage.client import StoreClient
from tests.oracle import Oracle
from tests.system.client import chat
from tests.system.recomputed import ARGUMENTS, LONG, TOLERANCE, check
from tests.system.shared import SharedStacks, Writer
from tests.system.test_hybrid import cut_answer, hot_and_after_a_restart, recurrent, restarted
from tests.tiny_hybrids import HYBRIDS
from tests.tiny_own_attention import write_kimi_linear
from tests.tiny_states import STATES

EVERY = [*HYBRIDS, write_kimi_linear, *STATES]
pytestmark = pytest.mark.sampled(3)
NAMES = [write.__name__.removeprefix("write_") for write in EVERY]
every = pytest.mark.parametrize("write", EVERY, ids=NAMES)


@pytest.mark.essential("recurrent layers resume exactly")
@pytest.mark.slow(*set(NAMES) - {"mamba2"})
@every
async def test_hot_and_after_a_restart(stacks: SharedStacks, write: Writer) -> None:
    for _, tensors in await hot_and_after_a_restart(stacks, write):
        assert any(name.startswith(STATE) for name in tensors)


@pytest.mark.slow
@recurrent
async def test_an_answer_made_again_resumes_before_the_cue(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        messages = chat(("system", LONG), ("user", "Who told you?"))
        first = await client.turn("a", messages=messages, **ARGUMENTS)
        prompt = len(await check(stack, oracle, first)) - len(first.token_ids)
        for tier in ("hot", "warm"):
            again = await client.turn("a", messages=messages, **ARGUMENTS)
            await check(stack, oracle, again)
            assert (again.match, list(again.cached)) == ("PARTIAL", [tier])
            assert prompt - 12 < again.cached[tier] < prompt, "all but the cue"
            await restarted(stack, "a")


@pytest.mark.slow
@recurrent
async def test_a_cut_answer_costs_the_answer_and_nothing_before(
    stacks: SharedStacks, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens after a stop string are in the state. The checkpoint before them is not in the pool, and a file only once
    it is written: the next turn waits for it.
    """
    stage = StoreClient.stage

    async def late(self: StoreClient, *arguments: Any) -> Any:
        await asyncio.sleep(1)
        return await stage(self, *arguments)

    monkeypatch.setattr(StoreClient, "stage", late)
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write) as stack:
        client = await stack.client()
        free, cut = await cut_answer(client)
        assert len(cut.token_ids) < len(free.token_ids)
        prompt, ids = cut.started.cache.prompt_tokens, list((await stack.ledger("a")).token_ids)
        assert np.abs(oracle.logprobs_of(ids, prompt) - np.array(cut.logprobs)[: len(ids) - prompt]).max() < TOLERANCE
        for _ in range(2):
            after = await client.say("a", "Who told you?", **ARGUMENTS)
            assert len(ids) - 40 < after.cached["hot"] <= len(ids)
            ids = await check(stack, oracle, after)
