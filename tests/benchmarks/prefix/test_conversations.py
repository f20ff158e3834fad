"""Conversations and who plays them."""

from functools import cache
from random import Random

import pytest

from agentmem.kv.ledger import Ledger
from benchmarks.prefix.contestants import CONTESTANTS, by_text, by_tokens, play
from benchmarks.prefix.conversations import SCENARIOS, Step
from benchmarks.prefix.passages import OTHERS, answer
from benchmarks.prefix.vocabularies import END, Vocabulary, trained


@cache
def vocabulary() -> Vocabulary:
    return trained(["the colour of the boat is green\n\n", "def f(x):\n    return x + 1\n", *OTHERS] * 8, size=700)


@pytest.mark.slow
def test_a_split_token_is_two_that_say_the_same() -> None:
    text = answer(Random(1), 2)
    whole, split = (vocabulary().answer(text, Random(2), rate) for rate in (0.0, 0.5))
    assert whole.text == split.text == text
    assert len(split.token_ids) > len(whole.token_ids)
    assert whole.token_ids[-1] == split.token_ids[-1] == vocabulary().tokenizer.special_id(END)
    cut = vocabulary().answer(text, Random(2), 0.0, limit=5)
    assert cut.token_ids == whole.token_ids[:5]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios_are_the_same_each_time_and_the_rate_changes_no_text(scenario: str) -> None:
    def steps(rate: float) -> list[Step]:
        return list(SCENARIOS[scenario](vocabulary(), Random("seed"), rate))

    once, again = steps(0.01), steps(0.01)
    assert once == again
    assert len(once) >= 6
    assert steps(0.0)[0].prompt == once[0].prompt


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_everybody_sees_the_prompt_whatever_is_kept(scenario: str) -> None:
    steps = list(SCENARIOS[scenario](vocabulary(), Random("seed"), 0.01))
    for contestant in CONTESTANTS.values():
        played = play(vocabulary(), steps, contestant)
        assert len(played.prompts) == len(played.computed) == len(steps) - 1
        assert all(computed >= 1 for computed in played.computed)


def test_an_answer_in_other_tokens_costs_only_who_compares_tokens() -> None:
    steps = list(SCENARIOS["continued"](vocabulary(), Random("seed"), 0.2))
    text, tokens = (sum(play(vocabulary(), steps, each).computed) for each in (by_text(0.0), by_tokens))
    assert text < tokens


def test_a_plan_that_loses_text_is_an_error() -> None:
    steps = list(SCENARIOS["continued"](vocabulary(), Random("seed"), 0.0))

    def cut(of: Vocabulary, renderer: object, ledger: Ledger, step: Step) -> tuple[int, tuple[int, ...]]:
        kept, sequence = by_tokens(of, of.plain, ledger, step)
        return kept, sequence[:-1]

    def greedy(of: Vocabulary, renderer: object, ledger: Ledger, step: Step) -> tuple[int, tuple[int, ...]]:
        kept, sequence = by_tokens(of, of.plain, ledger, step)
        return kept + 1, sequence

    with pytest.raises(RuntimeError, match="decode"):
        play(vocabulary(), steps, cut)
    with pytest.raises(RuntimeError, match="keeps"):
        play(vocabulary(), steps, greedy)
