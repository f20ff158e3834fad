"""Drafts are what followed the longest match, as long as it pays; and guesses are counted without steps of a model."""

from collections.abc import Callable, Collection, Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.engine.drafting import SIZES, Drafter, Guess, chosen

A, B, C, D, E = range(1, 6)


def free(_drafted: int) -> float:
    """A step of many tokens takes no longer than one of one."""
    return 1.0


def draft(of: Drafter, most: int, ends: Collection[int], cost: Callable[[int], float]) -> list[int]:
    """The draft of a turn that decodes alone."""
    return next(iter(chosen([of.guesses(most, ends)], cost)), [])


def drafter(*texts: Sequence[int]) -> Drafter:
    return Drafter([token for text in texts for token in text])


def sure(tokens: Sequence[int]) -> Drafter:
    found = Drafter(tokens)
    found._right = list(found._guessed)
    return found


def longest_match(tokens: Sequence[int]) -> tuple[int, int]:
    """By definition: where the guess stands, and the tokens before it that are the last ones; (0, 0) below three."""
    best = (0, 0)
    for place in range(len(tokens) - 1, 0, -1):
        match = 0
        while match < min(place, 64) and tokens[place - 1 - match] == tokens[len(tokens) - 1 - match]:
            match += 1
        if match >= 3 and match > best[1]:
            best = place, match
    return best


@given(st.lists(st.integers(0, 2), min_size=1, max_size=90), st.lists(st.integers(0, 2), max_size=20))
def test_a_guess_stands_behind_the_longest_match(tokens: list[int], later: list[int]) -> None:
    found, place = Drafter(tokens), longest_match(tokens)[0]
    for at, token in enumerate(later):
        before = [*tokens, *later[:at]]
        assert (found._guess, bool(found._match)) == (place, place > 0)
        found.add(token)
        place = place + 1 if place and before[place] == token else longest_match([*before, token])[0]
    assert found._guess == place


def test_a_draft_is_what_followed() -> None:
    text = list(range(100, 160))
    assert draft(sure([*text, 7, *text[:12]]), 31, (), free) == text[12:43]
    assert draft(sure([*text, 7, *text[:12]]), 9, (), free) == text[12:19], "of the sizes that steps have"
    assert draft(sure([*text, 7, *text[:12]]), 31, {text[15]}, free) == text[12:15], "an end stays out of it"
    assert draft(sure([*text, 7, *text[:12]]), 0, (), free) == []
    assert draft(sure([*text, 7, *text[:2]]), 31, (), free) == [], "two tokens are no match"
    assert draft(sure([*text[:9], 7, *text[:4]]), 31, (), free) == [*text[4:9], 7, text[0]], "as far as there are"
    assert draft(Drafter([1]), 31, (), free) == []


def test_drafts_grow_while_guesses_are_right_and_stop_when_they_are_not() -> None:
    def cost(drafted: int) -> float:
        return 1 + (drafted + 1) / 8

    text = list(range(100, 400))
    found = drafter(text, text[:3])
    sizes = []
    for token in text[3:100]:
        sizes.append(len(draft(found, 31, (), cost)))
        found.add(token)
    assert sizes[0] <= 1
    assert sizes[-1] == 31
    assert sizes == sorted(sizes)
    assert set(sizes) <= {0, *SIZES}

    words = np.random.default_rng(0).integers(0, 8, 600).tolist()
    found = drafter(words)
    drafted = []
    for token in np.random.default_rng(1).integers(0, 8, 300).tolist():  # each match goes on by chance
        drafted.append(len(draft(found, 31, (), cost)))
        found.add(token)
    assert sum(drafted[-100:]) < 20, "it was seen that they are wrong"
    repeated = words[40:140]
    for token in repeated:
        found.add(token)
    assert len(draft(found, 31, (), cost)) > 1, "and that they are right again, though nothing was drafted"


@pytest.mark.parametrize(("cost", "size"), [(1.0, 31), (1.6, 31), (40.0, 0)])
def test_a_draft_pays_or_there_is_none(cost: float, size: int) -> None:
    text = list(range(100, 200))
    found = sure([*text, 7, *text[:40]])
    assert len(draft(found, 31, (), lambda _: cost)) == size
    assert len(draft(found, 31, (), lambda drafted: float(drafted + 1))) == 0, "as long as that many steps"
    assert len(draft(found, 31, (), lambda drafted: 1.2 if drafted <= 3 else 12.0)) == 3


def offer(*likely: float) -> list[Guess]:
    return [Guess(at, each) for at, each in enumerate(likely)]


def test_turns_share_a_step_and_the_likeliest_guesses_are_drafted() -> None:
    def cost(drafted: int) -> float:
        return 1.0 if drafted <= 3 else 50.0

    assert chosen([offer(0.9, 0.8, 0.7), offer(), offer(0.85, 0.3)], cost) == [[0, 1], [], [0]]
    assert chosen([offer(0.9, 0.8, 0.75), offer(0.2), offer(0.7)], cost) == [[0, 1, 2], [], []]
    five = [offer(0.9), offer(0.8), offer(0.7), offer(0.6), offer(0.5)]
    assert chosen(five, free) == [[0], [0], [0], [], []], "of the numbers that steps have"


@given(st.lists(st.lists(st.floats(0.1, 1.0), max_size=9), min_size=1, max_size=6), st.floats(0.0, 0.3))
def test_no_other_choice_promises_more(ratios: list[list[float]], dear: float) -> None:
    guesses = [offer(*np.cumprod(each)) if each else [] for each in ratios]

    def promised(counts: Sequence[int]) -> float:
        tokens = len(guesses) + sum(g.likely for each, n in zip(guesses, counts, strict=True) for g in each[:n])
        return float(tokens / (1 + dear * sum(counts)))

    found = chosen(guesses, lambda drafted: 1 + dear * drafted)
    counts = [len(each) for each in found] or [0] * len(guesses)
    assert sum(counts) in (0, *SIZES)
    if found:
        assert [each[:n] for each, n in zip(guesses, counts, strict=True)] == [
            [Guess(token, guess.likely) for token, guess in zip(each, of, strict=False)]
            for each, of in zip(found, guesses, strict=True)
        ]
        assert promised(counts) > 1.1 * len(guesses)
    for turn, more in permutations(range(len(guesses)), 2):
        other = [n + (at == more) - (at == turn) for at, n in enumerate(counts)]
        if counts[turn] and counts[more] < len(guesses[more]):
            assert promised(other) <= promised(counts) + 1e-9
