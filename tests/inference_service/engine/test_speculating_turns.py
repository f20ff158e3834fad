"""How turns end, and what they meet, while steps compute several of their tokens."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from agentmem.v1 import types_pb2
from benchmarks.loading import load
from inference_service.domain import Sampling
from inference_service.engine import batching
from inference_service.engine.drafting import Guess
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.passes import Pass
from inference_service.engine.speculation import StepCosts, sampled_along
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import EXACT, Turn, begin, prompt_of, run, until_told
from tests.inference_service.engine.foresight import (
    PENALIZED,
    TOKENS,
    WARM,
    Foresight,
    both_ways,
    foresee,
    same,
    speculating,
    speculating_together,
)
from tests.json_schemas import fits
from tests.tiny_models import write_llama

directory = written_by([write_llama])


@pytest.fixture(autouse=True)
def drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    foresee(monkeypatch)


@pytest.mark.slow
def test_an_answer_ends_where_it_would_have_ended(model: LoadedModel) -> None:
    prompt = prompt_of(model, 4, 3)
    start = partial(begin, model, prompt, top_logprobs=3)
    plain = start(TOKENS)
    run(model)
    text = "".join(event.text for event in plain.events)
    stop = text[len(text) // 2 :][:3]
    assert len(stop) == 3
    for how in (
        {"tokens": TOKENS},
        {"tokens": TOKENS, "stop": (stop,)},
        {"tokens": 17},
        {"tokens": 1},
    ):
        wanted = start(**how)
        run(model)
        for _ in range(4):
            turn, _, _ = speculating(model, plain, partial(start, **how))
            assert same(model, wanted, turn)
            assert [event.text for event in turn.events] == [event.text for event in wanted.events]
            for found, expected in zip(turn.events, wanted.events, strict=True):
                assert [token for token, _ in found.top] == [token for token, _ in expected.top]
            assert turn.generated.token_ids == wanted.generated.token_ids
            assert turn.generated.reason == wanted.generated.reason
            assert turn.generated.sampled == wanted.generated.sampled


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_a_grammar_holds_each_token_of_a_draft(tmp_path: Path, sampling: Sampling) -> None:
    directory = write_llama(tmp_path, vocab_size=352)
    model = load("tiny", str(directory), hashes=ContentHashes(tmp_path / "hashes.json"))
    schema = {
        "type": "object",
        "properties": {
            "choice": {"enum": ["yes indeed", "not at all"]},
            "list": {"type": "array", "items": {"const": 17}, "minItems": 3, "maxItems": 5},
        },
        "required": ["choice", "list"],
        "additionalProperties": False,
    }

    def start() -> Turn:
        grammar = model.grammars.compile(json.dumps(schema))
        return begin(model, prompt_of(model, 4, 3), 300, sampling, grammar=grammar)

    plain = start()
    run(model)
    assert plain.generated.reason == types_pb2.FINISH_REASON_STOP
    turn, steps, accepted = speculating(model, plain, start)
    assert same(model, plain, turn)
    assert fits("".join(event.text for event in turn.events) + turn.generated.rest.text, schema)
    assert accepted > 5
    assert steps < len(turn.events)


def together(model: LoadedModel, sampling: Sampling) -> list[Turn]:
    """Turns that begin and end at different times; the third wants log-probabilities, so it is sampled by itself."""
    reports = (None, None, 3)
    return [
        begin(model, prompt_of(model, number, 3), TOKENS - 5 * number, sampling, top_logprobs=top)
        for number, top in enumerate(reports, 1)
    ]


@pytest.mark.slow("penalized")
@pytest.mark.parametrize("sampling", [EXACT, WARM, PENALIZED], ids=["greedy", "sampled", "penalized"])
def test_turns_that_decode_together_say_the_same(model: LoadedModel, sampling: Sampling) -> None:
    start = partial(together, model, sampling)
    plain = start()
    run(model)
    turns, steps, accepted = speculating_together(model, plain, start)
    assert accepted > TOKENS / 2
    assert steps < TOKENS
    for turn, before in zip(turns, plain, strict=True):
        assert same(model, before, turn)


def test_more_turns_than_pay_take_a_token_a_step(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.engine._speculation, "most_turns", 2)
    start = partial(together, model, EXACT)
    plain = start()
    run(model)
    drafted: list[int] = []
    monkeypatch.setattr(Foresight, "guesses", lambda self, most, _: drafted.append(most) or [])
    turns, _, _ = speculating_together(model, plain, start)
    assert all(same(model, before, turn) for turn, before in zip(turns, plain, strict=True))
    assert len(drafted) < 20, "the first of them ends ten tokens before the last"


@pytest.mark.parametrize("proof", ["rows_together", "rides"])
def test_turns_that_may_not_share_a_pass_are_not_drafted_for_together(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, proof: str
) -> None:
    monkeypatch.setattr(model.engine.model, proof, False)
    monkeypatch.setattr(Foresight, "guesses", lambda self, most, _: [Guess(t, 1.0) for t in self.next(min(most, 5))])
    start = partial(together, model, EXACT)
    plain = start()
    run(model)
    seen: list[int] = []

    def noting(logits: mx.array, jobs: Sequence[TurnJob], drafts: Sequence[Sequence[int]]) -> list[list[int]]:
        seen.append(len(jobs))
        return sampled_along(logits, jobs, drafts)

    monkeypatch.setattr(batching, "sampled_along", noting)
    turns, _, _ = speculating_together(model, plain, start)
    assert all(same(model, before, turn) for turn, before in zip(turns, plain, strict=True))
    assert set(seen) == {1}


def test_a_turn_that_fails_within_a_draft_ends_alone(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    start = partial(together, model, EXACT)
    plain = start()
    run(model)
    take, first = TurnJob.take, plain[0].job.sequence[0]
    monkeypatch.setattr(Foresight, "guesses", lambda self, most, _: [Guess(t, 1.0) for t in self.next(min(most, 5))])

    def failing(self: TurnJob, token: int, tokenizer: Tokenizer) -> None:
        if self.sequence[0] == first and len(self.result.token_ids) > 9:
            raise ValueError("no such token")
        take(self, token, tokenizer)

    monkeypatch.setattr(TurnJob, "take", failing)
    turns, _, _ = speculating_together(model, plain, start)
    with pytest.raises(ValueError, match="no such token"):
        turns[0].job.future.result(0)
    assert turns[0].said == plain[0].said[:10]
    assert not any(turn.job.alone for turn in turns[1:]), "their step did not fail"
    assert all(same(model, before, turn) for turn, before in zip(turns[1:], plain[1:], strict=True))


@pytest.mark.slow
def test_a_step_that_fails_is_done_again_by_plain_ones(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def failing(logits: mx.array, jobs: Sequence[TurnJob], drafts: Sequence[Sequence[int]]) -> list[list[int]]:
        nonlocal calls
        calls += 1
        tokens = sampled_along(logits, jobs, drafts)
        if calls == 4:
            raise RuntimeError("the device has gone")
        return tokens

    monkeypatch.setattr(batching, "sampled_along", failing)
    for sampling in (EXACT, WARM, PENALIZED):
        calls = 0
        plain, turn, _, _ = both_ways(model, sampling)
        assert calls == 4, "it is kept apart, and does not speculate again"
        assert same(model, plain, turn)
    assert "the device has gone" in caplog.text


@pytest.mark.parametrize("sampling", [EXACT, WARM], ids=["greedy", "sampled"])
def test_a_turn_with_a_seed_is_not_drafted_for(model: LoadedModel, sampling: Sampling) -> None:
    """It asks for the same answer again, and how many tokens a step computes hangs on times."""
    plain, turn, steps, _ = both_ways(model, replace(sampling, seed=3))
    assert steps == TOKENS + 1, "the last one computes KV alone"
    assert turn.job.drafter is None
    assert same(model, plain, turn)


def test_steps_take_what_their_passes_take(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    took: list[tuple[int, float]] = []
    compute, note = model.arenas.compute, StepCosts.took

    def slow(network: Any, of: Pass, tokens: mx.array) -> Any:
        nonlocal clock
        clock += of.tokens
        return compute(network, of, tokens)

    def noting(self: StepCosts, drafted: int, seconds: float) -> None:
        took.append((drafted, seconds))
        note(self, drafted, seconds)

    monkeypatch.setattr(model.arenas, "compute", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    monkeypatch.setattr(StepCosts, "took", noting)
    plain = begin(model, prompt_of(model, 4, 3), TOKENS)
    run(model)

    def start() -> Turn:
        turn = begin(model, prompt_of(model, 4, 3), TOKENS)
        until_told(model, [turn], 9)
        begin(model, prompt_of(model, 1, 1)[:9], 1)
        return turn

    guesses = Foresight.guesses
    monkeypatch.setattr(Foresight, "guesses", lambda self, *how: guesses(self, *how) if self.tokens % 8 < 3 else [])
    took.clear()
    turn, _, _ = speculating(model, plain, start)
    assert same(model, plain, turn)
    assert len({drafted for drafted, _ in took}) > 3
    assert [each for each in took if each[0] == 0], "two plain steps, one after the other"
    assert [seconds for _, seconds in took] == [1 + drafted for drafted, _ in took]


def test_it_is_off_unless_it_is_asked_for(model: LoadedModel) -> None:
    turn = begin(model, prompt_of(model, 4, 3), 5)
    run(model)
    assert turn.job.drafter is None
