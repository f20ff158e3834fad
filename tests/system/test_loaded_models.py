"""Several models in memory at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.system.client import chat
from tests.system.recomputed import TOLERANCE
from tests.system.several import ARGUMENTS, Several, of_models
from tests.tiny_models import write_llama

several = of_models(
    lambda root: {name: write_llama(root / name, seed=seed) for seed, name in enumerate("abc")},
    *("--loaded-models", "2"),
    hosted=True,
)


@pytest.mark.slow
async def test_two_models_generate_at_a_time_and_a_third_takes_the_place_of_the_one_used_longest_ago(
    several: Several,
) -> None:
    a, b, c = [await several.on(name) for name in "abc"]
    for client in (a, b):
        await client.turn("first", messages=chat(("user", "Hello?")), max_tokens=1)
    assert await several.loaded() == ["a", "b"]
    before = await several.swaps()
    asked: Any = {**ARGUMENTS, "max_tokens": 300}
    both = asyncio.gather(*(client.say("both", "Who is there?", **asked) for client in (a, b)))
    await several.stack.until_running(2)
    turns = await both
    assert await several.swaps() == before
    for client, turn, other in ((a, turns[0], "b"), (b, turns[1], "a")):
        assert await several.difference("both", client.model, turn) < TOLERANCE
        assert await several.difference("both", client.model, turn, several.directories[other]) > 100 * TOLERANCE
    await a.say("both", "And now?", max_tokens=1)
    turn = await c.turn("both", messages=chat(("user", "Hello?")), **ARGUMENTS)
    assert await several.difference("both", "c", turn) < TOLERANCE
    assert await several.loaded() == ["a", "c"], "a was used after b"
