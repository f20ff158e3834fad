"""Models with recurrent layers: right hot, warm and where an answer was cut or is made again."""

import pytest

from agentmem.kv.blockfile import STATE
from tests.oracle import Oracle
from tests.system.client import chat
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.shared import SharedStacks, Writer
from tests.system.test_hybrid import hot_and_after_a_restart, recurrent, restarted
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
