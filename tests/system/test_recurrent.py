"""Models with recurrent layers: right hot, warm and where an answer was cut or is made again."""

import numpy as np
import pytest

from agentmem.kv.blockfile import STATE
from tests.oracle import Oracle
from tests.system.client import chat
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import running
from tests.system.test_hybrid import cut_answer, hot_and_after_a_restart, recurrent, restarted
from tests.tiny_hybrids import HYBRIDS, write_qwen3_next
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
async def test_a_stop_string_costs_the_answer_and_nothing_before(stacks: SharedStacks, write: Writer) -> None:
    """Tokens behind a stop string are in the state: what is left of the turn goes on from before its cue."""
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        free, stopped = await cut_answer(client)
        assert len(stopped.token_ids) < len(free.token_ids)
        ids = list((await stack.ledger("a")).token_ids)
        prompt, tokens = stopped.started.cache.prompt_tokens, len(ids)
        wanted = oracle.logprobs_of(ids, prompt)
        assert np.abs(wanted - np.array(stopped.logprobs)[: tokens - prompt]).max() < 1e-3
        for _ in range(2):
            after = await client.say("a", "Who told you?", **ARGUMENTS)
            assert tokens - 40 < after.cached["hot"] <= tokens
            tokens = len(await check(stack, oracle, after))


@pytest.mark.slow
async def test_the_next_turn_waits_for_the_checkpoint_before_a_cut_answer(
    stacks: SharedStacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not in the pool, and a file only once it is written."""
    monkeypatch.setenv("FAULT", "slow_writes")
    monkeypatch.setenv("FAULT_WRITE_SECONDS", "1")
    directory = stacks.directory(write_qwen3_next)
    async with running(f"tiny={directory}", worker_module="tests.system.faulty_worker") as stack:
        client = await stack.client()
        _, stopped = await cut_answer(client)
        after = await client.say("a", "Who told you?", **ARGUMENTS)
        assert after.cached["hot"] > stopped.started.cache.prompt_tokens - 40
        await check(stack, Oracle(directory), after)


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
