"""Turns that are decoded again with drafts of what they said, so that what speculation computes can be compared."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from inference_service.domain import Sampling
from inference_service.engine import batching
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

    said: Sequence[int] = ()
    prompt: Sequence[int] = ()
    chance = random.Random(0)

    def __init__(self, tokens: Sequence[int]) -> None:
        self.known = list(tokens)

    @property
    def tokens(self) -> int:
        return len(self.known)

    def add(self, token: int) -> None:
        self.known.append(token)

    def draft(self, most: int, ends: Any, _cost: Any) -> list[int]:
        at = self.tokens - len(self.prompt)
        assert self.known == [*self.prompt, *self.said[:at]], "the turn's tokens, each once"
        size = min(most, self.chance.choice([0, 1, 2, 3, 7, 12]))
        draft = list(self.said[at : at + size])
        if draft and self.chance.random() < 0.7:
            wrong = self.chance.randrange(len(draft))
            draft[wrong:] = [(token + 1) % 90 for token in draft[wrong:]]
        stop = next((place for place, token in enumerate(draft) if token in ends), len(draft))
        return draft[:stop]


def foresee(patch: pytest.MonkeyPatch) -> None:
    """Have drafts be Foresight's; and give turns without a seed, which only are drafted for, the same random keys."""
    patch.setattr(batching, "Drafter", Foresight)
    patch.setattr(Foresight, "chance", random.Random(1))
    patch.setattr(Foresight, "prompt", ())
    patch.setattr(Foresight, "said", ())
    patch.setattr(secrets, "randbits", lambda _bits: 3)


def speculating(model: LoadedModel, plain: Turn, start: Callable[[], Turn]) -> tuple[Turn, int, int]:
    """The turn again with drafts of what it said before; steps, and tokens of drafts that were right."""
    steps: list[str] = []
    accepted: list[int] = []
    engine = model.engine
    Foresight.prompt, Foresight.said = list(plain.job.sequence), [event.token_id for event in plain.events]
    engine.speculative, engine.stepped = True, steps.append
    engine.speculated = lambda _drafted, right: accepted.append(right)
    try:
        turn = start()
        run(model)
    finally:
        engine.speculative, engine.stepped = False, lambda _: None
        engine.speculated = lambda _drafted, _right: None
    return turn, steps.count("decode"), sum(accepted)


def both_ways(model: LoadedModel, sampling: Sampling = EXACT, repeats: int = 3) -> tuple[Turn, Turn, int, int]:
    """A turn by plain steps and by several tokens in one."""
    start = partial(begin, model, prompt_of(model, 4, repeats), TOKENS, sampling)
    plain = start()
    run(model)
    assert len({event.token_id for event in plain.events}) > 5, "an output that does not vary proves nothing"
    return plain, *speculating(model, plain, start)


def same(model: LoadedModel, plain: Turn, turn: Turn) -> bool:
    """Whether a turn gave the tokens of another, with their log-probabilities, each by an event, and KV of them."""
    if turn.said != plain.said:
        return False
    if max(abs((a.logprob or 0) - (b.logprob or 0)) for a, b in zip(turn.events, plain.events, strict=True)) > 1e-3:
        return False
    if not turn.whole or turn.kv.lost:
        return False
    return differing(packed(model, turn.kv), packed(model, plain.kv)) < FLIPPED_CODES
