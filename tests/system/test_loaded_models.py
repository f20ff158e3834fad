"""Several models in memory at once, and what is answered of those that are not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.system.client import Client, Turn, chat
from tests.system.recomputed import TOLERANCE
from tests.system.several import ARGUMENTS, Several
from tests.tiny_models import write_llama


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """Three models, of which two may be loaded."""
    root = tmp_path_factory.mktemp("models")
    models = {name: write_llama(root / name, seed=seed) for seed, name in enumerate("abc")}
    several = Several(models, ("--loaded-models", "2"), hosted=True)
    asyncio.run(several.stack.up())
    yield several
    several.close()


async def generate(client: Client, agent: str, order: list[str], tokens: int) -> Turn:
    """A turn whose deltas are noted in the order in which they come."""
    request = client.request(agent, messages=chat(("user", f"Who is {agent}?")), **{**ARGUMENTS, "max_tokens": tokens})
    turn = Turn()
    async for event in client.inference.Generate(request, timeout=120):
        if event.HasField("delta"):
            order.append(client.model)
            turn.token_ids += event.delta.token_ids
            turn.logprobs += [token.logprob for token in event.delta.logprobs]
        elif event.HasField("finished"):
            turn.finished = event.finished
    return turn


@pytest.mark.slow
async def test_two_models_generate_at_a_time_and_a_third_takes_the_place_of_the_one_used_longest_ago(
    several: Several,
) -> None:
    order: list[str] = []
    a, b, c = [await several.on(name) for name in "abc"]
    for client in (a, b):
        await client.turn("first", messages=chat(("user", "Hello?")), max_tokens=1)
    assert await several.loaded() == ["a", "b"]
    before = await several.swaps()
    turns = await asyncio.gather(*(generate(client, "both", order, 300) for client in (a, b)))
    assert await several.swaps() == before
    changes = sum(one != other for one, other in pairwise(order))
    assert changes > 4, "they took turns"
    for client, turn, other in ((a, turns[0], "b"), (b, turns[1], "a")):
        assert await several.difference("both", client.model, turn) < TOLERANCE
        assert await several.difference("both", client.model, turn, several.directories[other]) > 100 * TOLERANCE
    await a.say("both", "And now?", max_tokens=1)
    turn = await c.turn("both", messages=chat(("user", "Hello?")), **ARGUMENTS)
    assert await several.difference("both", "c", turn) < TOLERANCE
    assert await several.loaded() == ["a", "c"], "a was used after b"
