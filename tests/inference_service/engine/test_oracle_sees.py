"""Faults that the comparisons of these tests find: by the oracle, by what goes on from KV, and by packed bits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine import batching
from inference_service.engine.paged.passes import KVCache, Pass
from inference_service.engine.paged.sequence import Sequence, WorkingKV
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine import foresight
from tests.inference_service.engine.batch_rows import alone, decoded, inject, same, swapped_rows
from tests.inference_service.engine.batch_turns import Turn, begin, prompt_of, rewrite, right, run
from tests.oracle import Oracle
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_models import write_gemma3

directory = written_by([write_gemma3, write_qwen3_next])


with_windows = pytest.mark.parametrize("directory", [write_gemma3], ids=["gemma3"], indirect=True)
with_states = pytest.mark.parametrize("directory", [write_qwen3_next], ids=["qwen3_next"], indirect=True)


def wrong(model: LoadedModel, oracle: Oracle, turns: list[Turn]) -> bool:
    """Return whether turns were told something wrong, or something wrong goes on from their KV."""
    if not all(turn.whole and not turn.job.alone and right(oracle, turn) for turn in turns):
        return True
    later = [begin(model, [*turn.job.sequence, *turn.said, *prompt_of(model, 7, 1)], 8, warm=turn.kv) for turn in turns]
    run(model)
    return not all(right(oracle, turn) for turn in later)


def swapped_tables(of: Pass) -> None:
    one, other = of.pieces[0].sequence, of.pieces[-1].sequence
    one.full, other.full = other.full, one.full


def swapped_states(of: Pass) -> None:
    one, other = of.pieces[0].sequence, of.pieces[-1].sequence
    (one.states, one.row), (other.states, other.row) = (other.states, other.row), (one.states, one.row)


def one_position_off(of: Pass) -> None:
    of.offset = of.offset + 1


def written_one_further(of: Pass) -> None:
    of.starts = [start + 1 for start in of.starts]


def stale_window(of: Pass) -> None:
    """The newest tokens of sliding layers are those of some steps before."""
    for working in (each for sequence, _ in of.pieces for each in sequence.working.values() if each.window):
        end = working.filled
        for array in working._arrays:
            array[:, :, end - 8 : end] = array[:, :, end - 16 : end - 8] + 0


def faults_of_passes(model: LoadedModel, oracle: Oracle, fault: Callable[[Pass], None]) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        met = inject(model, patch, fault)
        turns = [*decoded(model).values()]
    assert met
    return wrong(model, oracle, turns)


def test_where_nothing_is_wrong_nothing_is_found(model: LoadedModel, oracle: Oracle) -> None:
    assert not faults_of_passes(model, oracle, lambda _: None)


@with_windows
@pytest.mark.parametrize("fault", [swapped_rows, swapped_tables, one_position_off, written_one_further, stale_window])
def test_faults_of_rows_are_found(model: LoadedModel, oracle: Oracle, fault: Callable[[Pass], None]) -> None:
    assert faults_of_passes(model, oracle, fault)


@with_states
def test_a_state_of_another_is_found(model: LoadedModel, oracle: Oracle) -> None:
    assert faults_of_passes(model, oracle, swapped_states)


@with_windows
def test_logits_of_another_are_found(model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    original = batching.next_tokens
    monkeypatch.setattr(batching, "next_tokens", lambda logits, jobs: original(logits[::-1], jobs))
    assert not all(right(oracle, turn) for turn in decoded(model).values())


@with_windows
def test_a_missing_mask_is_found(model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_seen(self: KVCache, n: int, *_: Any, **__: Any) -> mx.array:
        shown = min(int(self.offset), self.window - 1) if self.window else int(self.offset)
        return mx.ones((n, shown + n), mx.bool_)

    monkeypatch.setattr(KVCache, "make_mask", all_seen)
    turn = begin(model, prompt_of(model, 1, 9))
    run(model)
    assert not right(oracle, turn)


def another_layers(model: LoadedModel, kv: Sequence) -> None:
    rewrite(model, kv, lambda tensor: np.concatenate([tensor[:-2], tensor[-2:][::-1]]))


def stale_tail(model: LoadedModel, kv: Sequence) -> None:
    """The last 16 tokens are those of an older state."""
    rewrite(model, kv, lambda tensor: np.concatenate([tensor[:, :, :-16], tensor[:, :, -32:-16]], axis=2))


@pytest.mark.parametrize("fault", [another_layers, stale_tail])
def test_faults_of_what_is_kept_are_found(
    model: LoadedModel, oracle: Oracle, fault: Callable[[LoadedModel, Sequence], None]
) -> None:
    turn = begin(model, prompt_of(model, 1, 9))
    run(model)
    fault(model, turn.kv)
    assert wrong(model, oracle, [turn])


@with_windows
def test_a_token_that_is_taken_twice_is_found(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    take, twice = model.engine._take, []

    def taken(flight: Any) -> None:
        take(flight)
        if not twice and len(flight.jobs) > 1:
            twice.append(flight)
            take(flight)

    monkeypatch.setattr(model.engine, "_take", taken)
    turns = decoded(model, top_logprobs=None)
    monkeypatch.undo()
    assert twice and not same(model, turns, alone(model))


def taken_unseen(patch: pytest.MonkeyPatch) -> None:
    """The first token of a draft is taken as it is."""
    original = batching.sampled_along

    def careless(logits: mx.array, jobs: Any, drafts: Any) -> list[list[int]]:
        found = zip(original(logits, jobs, drafts), drafts, strict=True)
        return [[*draft[:1], *tokens[1:]] if draft else tokens for tokens, draft in found]

    patch.setattr(batching, "sampled_along", careless)


def kept_in_windows(patch: pytest.MonkeyPatch) -> None:
    trim = WorkingKV.trim
    patch.setattr(WorkingKV, "trim", lambda self, tokens: None if self.window else trim(self, tokens))


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts as of `foresee`, also of a turn that has gone astray."""

    def undeterred(self: foresight.Foresight, most: int) -> list[int]:
        return list(self.said[(at := self.tokens - len(self.prompt)) : at + most])

    foresight.foresee(monkeypatch)
    monkeypatch.setattr(foresight.Foresight, "next", undeterred)


@with_windows
@pytest.mark.usefixtures("drafts")
@pytest.mark.parametrize("fault", [taken_unseen, kept_in_windows])
def test_faults_of_speculation_are_found(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    start = partial(begin, model, prompt_of(model, 4, 3), foresight.TOKENS, top_logprobs=None)
    plain = start()
    run(model)
    assert foresight.same(model, plain, foresight.speculating(model, plain, start)[0])
    fault(monkeypatch)
    assert not foresight.same(model, plain, foresight.speculating(model, plain, start)[0])
