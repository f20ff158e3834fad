"""Agents with recurrent layers that move: their states stand for exactly the tokens of their KV, or are refused."""

from collections.abc import Callable

import numpy as np
import pytest

from agentmem.kv import blockfile
from tests.oracle import Oracle
from tests.system.files import Contents, contents, exported, forged, imported, refusal
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import hosting
from tests.system.test_export import renamed
from tests.system.test_hybrid import cut_answer, recurrent


@pytest.mark.slow
@pytest.mark.sampled(3)
@recurrent
async def test_the_states_of_a_cut_answer_are_those_before_it(stacks: SharedStacks, write: Writer) -> None:
    """So the KV ends there, in the middle of a block, and is found by a turn whose ledger goes on."""
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write) as stack, hosting(f"tiny={stacks.directory(write)}") as elsewhere:
        client, there = await stack.client(), await elsewhere.client()
        _, cut = await cut_answer(client)
        file = await exported(client, "a")
        said, prompt = contents(file), cut.started.cache.prompt_tokens
        position = said.kv_tokens
        assert prompt - 40 < position < prompt < said.tokens and position % 256
        assert (await imported(there, file, "b")).warm_tokens >= position
        assert renamed(await exported(there, "b")) == renamed(file), "it comes out as it went in"
        turn = await there.say("b", "Who told you?", **ARGUMENTS)
        assert (turn.match, turn.cached) == ("EXTEND", {"warm": position})
        await check(elsewhere, oracle, turn, "b")


def with_first_number(number: float) -> Callable[[Contents], None]:
    """Another number in the checkpoint's first state of 32 bits, and right checksums."""

    def change(found: Contents) -> None:
        file, content = found.files.pop()
        _, specs = blockfile.parse(content, len(content))
        start = next(s.start for name, s in specs.items() if name.startswith(blockfile.STATE) and s.dtype == "F32")
        content = content[:start] + np.float32(number).tobytes() + content[start + 4 :]
        file.digest = blockfile.digest(content)
        found.files.append((file, content))

    return change


def moved(found: Contents) -> None:
    """The checkpoint says that it is of the position before."""
    found.files[-1][0].token_count -= 1


@pytest.mark.slow
@pytest.mark.sampled(3)
@recurrent
async def test_states_that_are_no_good_are_refused(stacks: SharedStacks, write: Writer) -> None:
    async with stacks.using(write) as stack:
        client = await stack.client()
        await client.say("a", LONG, **ARGUMENTS)
        file = await exported(client, "a")
        tokens = contents(file).kv_tokens
        assert tokens == contents(file).tokens
        await client.delete_all()
        for change, reason in (
            (moved, "not of its tokens"),
            (with_first_number(np.nan), "are not finite"),
            (with_first_number(-np.inf), "are not finite"),
        ):
            code, why = await refusal(client, forged(file, change), "b")
            assert code == "DATA_LOSS" and reason in why
        flipped = file[:-100] + bytes([file[-100] ^ 1]) + file[-99:]
        assert (await refusal(client, flipped, "b"))[0] == "DATA_LOSS"
        assert not [*stack.block_files(), *stack.window_files(), *(stack.data / "staging").iterdir()]
        assert (await imported(client, file, "b")).warm_tokens == tokens
