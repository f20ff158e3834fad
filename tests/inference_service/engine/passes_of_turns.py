"""Turns that are queued at given ticks, so that their rows join and leave passes, and the same ones by themselves."""

from typing import Any

from inference_service.domain import Sampling
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import EXACT, Turn, begin, differing, packed, prompt_of, run

REPEATS, TOKENS = (1, 9, 16, 3, 1), (24, 10, 14, 30, 1)
ORDERS = {"one after the other": (0, 3, 6, 9, 12), "at once": (0,) * 5, "longest first": (8, 3, 0, 5, 11)}


def decoded(model: LoadedModel, joins: tuple[int, ...], sampling: Sampling = EXACT, **options: Any) -> list[Turn]:
    turns: dict[int, Turn] = {}
    for tick in range(10_000):
        for number in (number for number, at in enumerate(joins) if at == tick):
            prompt = prompt_of(model, number, REPEATS[number])
            turns[number] = begin(model, prompt, TOKENS[number], sampling, **options)
        if not model.engine.step() and len(turns) == len(joins):
            return [turns[number] for number in range(len(joins))]
    raise AssertionError("the engine does not come to an end")


def by_themselves(model: LoadedModel, sampling: Sampling = EXACT) -> list[Turn]:
    found = []
    for number, repeats in enumerate(REPEATS):
        found.append(begin(model, prompt_of(model, number, repeats), TOKENS[number], sampling))
        run(model)
    return found


def same(model: LoadedModel, turns: list[Turn], others: list[Turn]) -> bool:
    """Return whether they said the same, and leave the same bits."""
    return all(
        one.said == other.said and one.whole and differing(packed(model, one.kv), packed(model, other.kv)) == 0
        for one, other in zip(turns, others, strict=True)
    )
