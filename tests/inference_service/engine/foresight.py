"""Turns that are decoded again with drafts of what they said, so that what speculation computes can be compared."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from inference_service.domain import Sampling
from inference_service.engine import speculation
from inference_service.engine.drafting import Guess
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import EXACT, Turn, begin, differing, packed, prompt_of, run

FLIPPED_CODES = 0.005
TOKENS = 40
WARM = Sampling(temperature=1.0, top_p=0.95, ignore_eos=True)
PENALIZED = Sampling(
    temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.4, ignore_eos=True
)


class Foresight:
    """Guesses what a turn says, with mistakes at random. Takes the place of the look-up in a history."""

    turns: Sequence[Turn] = ()
    """Turns with the same prompts are expected to say what these said."""
    chance = random.Random(0)

    def __init__(self, tokens: Sequence[int]) -> None:
        self.known = list(tokens)
        like = [turn for turn in self.turns if self.known[: len(turn.job.sequence)] == list(turn.job.sequence)]
        self.prompt, self.said = (list(like[0].job.sequence), like[0].said) if like else ([], [])

    @property
    def tokens(self) -> int:
        return len(self.known)

    def add(self, token: int) -> None:
        self.known.append(token)

    def next(self, most: int) -> list[int]:
        """Return the next tokens that it will say, as far as they are known."""
        if not self.prompt:
            return []
        at = self.tokens - len(self.prompt)
        assert self.known == [*self.prompt, *self.said[:at]], "the turn's tokens, each once"
        return list(self.said[at : at + most])

    def guesses(self, most: int, ends: Any) -> list[Guess]:
        size = min(most, self.chance.choice([0, 1, 2, 3, 7, 12]))
        draft = self.next(size)
        if draft and self.chance.random() < 0.7:
            wrong = self.chance.randrange(len(draft))
            draft[wrong:] = [(token + 1) % 90 for token in draft[wrong:]]
        stop = next((place for place, token in enumerate(draft) if token in ends), len(draft))
        return [Guess(token, 1.0) for token in draft[:stop]]


def all_of_them(guesses: Sequence[Sequence[Guess]], _cost: Any) -> list[list[int]]:
    return [[guess.token for guess in each] for each in guesses]


def foresee(patch: pytest.MonkeyPatch) -> None:
    """Have guesses be Foresight's, and all be drafted; and give turns without a seed the same random keys."""
    patch.setattr(speculation, "Drafter", Foresight)
    patch.setattr(speculation, "chosen", all_of_them)
    patch.setattr(Foresight, "chance", random.Random(1))
    patch.setattr(Foresight, "turns", ())
    patch.setattr(secrets, "randbits", lambda _bits: 3)


def speculating(model: LoadedModel, plain: Turn, start: Callable[[], Turn]) -> tuple[Turn, int, int]:
    """The turn again with drafts of what it said before; steps, and tokens of drafts that were right."""
    [turn], steps, accepted = speculating_together(model, [plain], lambda: [start()])
    return turn, steps, accepted


def speculating_together(
    model: LoadedModel, plain: Sequence[Turn], start: Callable[[], Sequence[Turn]]
) -> tuple[Sequence[Turn], int, int]:
    steps: list[str] = []
    accepted: list[int] = []
    engine = model.engine
    Foresight.turns = plain
    engine.speculative, engine.stepped = True, steps.append
    engine.speculated = lambda _drafted, right: accepted.append(right)
    try:
        turns = start()
        run(model)
    finally:
        engine.speculative, engine.stepped = False, lambda _: None
        engine.speculated = lambda _drafted, _right: None
    return turns, steps.count("decode"), sum(accepted)


def both_ways(model: LoadedModel, sampling: Sampling = EXACT, repeats: int = 3) -> tuple[Turn, Turn, int, int]:
    """A turn by plain steps and by several tokens in one: the first prompt whose output varies, since any other proves
    nothing.
    """
    for number in range(4, 12):
        start = partial(begin, model, prompt_of(model, number, repeats), TOKENS, sampling)
        plain = start()
        run(model)
        if len({event.token_id for event in plain.events}) > 5:
            return plain, *speculating(model, plain, start)
    raise AssertionError("no prompt's output varies")


def same(model: LoadedModel, plain: Turn, turn: Turn) -> bool:
    """Return whether a turn gave another's tokens and log-probabilities, each by an event, and their KV."""
    if turn.said != plain.said:
        return False
    if max(abs((a.logprob or 0) - (b.logprob or 0)) for a, b in zip(turn.events, plain.events, strict=True)) > 1e-3:
        return False
    if not turn.whole or turn.kv.lost:
        return False
    return differing(packed(model, turn.kv), packed(model, plain.kv)) < FLIPPED_CODES
