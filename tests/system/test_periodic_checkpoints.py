"""A long prompt leaves checkpoints on its way: who comes back to its middle computes little of it again.

The tiny models' checkpoints are small beside their blocks, so they are STEP tokens apart. Windows also reach back from
the checkpoints at a prompt's end, by 256 tokens: tests leave a prompt before that.
"""

import pytest

from inference_service.memory.spacing import STEP
from tests.oracle import Oracle
from tests.system.client import Client, Turn, chat
from tests.system.recomputed import ARGUMENTS, check
from tests.system.shared import SharedStacks, Writer
from tests.system.test_hybrid import restarted
from tests.tiny_hybrids import write_baichuan_m1, write_qwen3_next
from tests.tiny_models import write_gemma3

LONG_MODELS = {"qwen3_next": write_qwen3_next, "baichuan_m1": write_baichuan_m1, "gemma3": write_gemma3}
models = pytest.mark.parametrize("write", LONG_MODELS.values(), ids=LONG_MODELS)

SENTENCES = 200


def story(edit: int = 0) -> str:
    """Words of 2,700 tokens; of an edited one the sentence of that number is another."""
    told = [f"{i}. The house by the sea is red." for i in range(SENTENCES)]
    if edit:
        told[edit] = f"{edit}. Nobody knows who said that."
    return " ".join(told)


async def tell(client: Client, agent: str, text: str) -> Turn:
    return await client.turn(agent, messages=chat(("user", text)), **ARGUMENTS)


@pytest.mark.slow
@pytest.mark.sampled(3)
@models
async def test_an_edit_in_the_middle_goes_on_from_the_checkpoint_before_it(stacks: SharedStacks, write: Writer) -> None:
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        first = await tell(client, "a", story())
        assert STEP < first.started.cache.prompt_tokens < 2 * STEP
        for edit, tier in ((165, "hot"), (160, "warm")):
            edited = await tell(client, "a", story(edit))
            assert (edited.match, edited.cached, edited.miss) == ("PARTIAL", {tier: STEP}, "NOT_TRIMMABLE")
            await check(stack, oracle, edited)
            await restarted(stack, "a")
        early = await tell(client, "a", story(90))
        assert (early.match, early.cached, early.miss) == ("PARTIAL", {}, "NOT_TRIMMABLE"), "there is none so early"
