"""Faults of passes of several turns, and what is under way of one that is over: each fault is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.passes import Pass
from inference_service.engine.paged.sequence import WorkingKV
from inference_service.engine.paged.writing import Written
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import (
    begin,
    difference,
    differing,
    new_kv,
    packed,
    prompt_of,
    run,
    until_told,
)
from tests.inference_service.engine.passes_of_turns import ORDERS, by_themselves, decoded, same
from tests.oracle import Oracle

pytestmark = pytest.mark.sampled(3)


def swapped_arrays(_: pytest.MonkeyPatch, of: Pass) -> None:
    one, other = (piece.sequence for piece in of.pieces[:2])
    one.working, other.working = other.working, one.working


def swapped_tables(_: pytest.MonkeyPatch, of: Pass) -> None:
    """Two rows have each other's table."""
    one, other = (piece.sequence for piece in of.pieces[:2])
    one.full, other.full = other.full, one.full


def a_length_one_too_long(_: pytest.MonkeyPatch, of: Pass) -> None:
    of.pieces[0].sequence.length += 1


def written_one_further(patch: pytest.MonkeyPatch, _: Pass) -> None:
    """Tokens are put into blocks one behind their place."""
    original = Written.__init__

    def made(self: Written, *arguments: Any) -> None:
        original(self, *arguments)
        self._starts = [(start + 1, end + 1) for start, end in self._starts]

    patch.setattr(Written, "__init__", made)


def put_into_anothers(patch: pytest.MonkeyPatch, _: Pass | None) -> None:
    original = Written.put

    def turned(self: Written) -> None:
        if len(self._of.pieces) > 1:
            self._of.pieces.reverse()
        original(self)

    patch.setattr(Written, "put", turned)


@pytest.mark.usefixtures("few_ride")
@pytest.mark.parametrize(
    "fault", [swapped_arrays, swapped_tables, a_length_one_too_long, written_one_further, put_into_anothers]
)
def test_faults_of_rows_are_found(
    model: LoadedModel,
    oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch, Pass], None],
) -> None:
    """By what turns are told, by the length of their KV, or by what goes on from it."""
    compute = model.arenas.compute
    met: list[Pass | None] = []

    def faulty(network: Any, of: Pass, tokens: mx.array) -> Any:
        if len(of.pieces) > 1 and not met:
            met.append(of)
            with pytest.MonkeyPatch.context() as patch:
                fault(patch, of)
                return compute(network, Pass(of.pieces), tokens)
        return compute(network, of, tokens)

    if fault is put_into_anothers:
        put_into_anothers(monkeypatch, None)
        met.append(None)
    else:
        monkeypatch.setattr(model.arenas, "compute", faulty)
    turns = decoded(model, ORDERS["at once"])
    assert met
    monkeypatch.undo()
    if not all(turn.whole for turn in turns) or max(difference(oracle, turn) for turn in turns) > 1e-2:
        return
    later = [
        begin(model, [*turn.job.sequence, *turn.generated.token_ids, *prompt_of(model, 7, 1)], 8, warm=turn.kv)
        for turn in turns
    ]
    run(model)
    worst = [difference(oracle, turn) for turn in later]
    assert not max(np.nan_to_num(worst, nan=1.0)) < 1e-2


def test_a_token_that_is_taken_twice_is_found(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    take = model.engine._take
    twice: list[Any] = []

    def taken(flight: Any) -> None:
        take(flight)
        if not twice and len(flight.jobs) > 1:
            twice.append(flight)
            take(flight)

    monkeypatch.setattr(model.engine, "_take", taken)
    turns = decoded(model, ORDERS["at once"], top_logprobs=None)
    assert twice
    monkeypatch.undo()
    assert not same(model, turns, by_themselves(model))


@pytest.mark.parametrize("fault", [False, True])
def test_what_is_under_way_of_a_turn_that_is_over_is_not_put(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    """Its blocks may be another's by then."""
    prompt = prompt_of(model, 0, 3)
    past = begin(model, prompt, None)
    gone = begin(model, prompt_of(model, 1, 1), 60)
    until_told(model, [past, gone][1:], 3)
    assert gone.job.kv is not None and gone.job.kv.length < past.kv.length
    [block] = gone.job.kv.full.blocks
    make = new_kv(model, len(prompt) + 9, past.kv)
    make.start = replace(make.start, blocks=[block], cut=(past.kv.full.blocks[0], block))
    if fault:
        monkeypatch.setattr(TurnJob, "drop_kv", lambda job: setattr(job, "kv", None))
    gone.cancelled.set()
    turn = begin(model, [*prompt, 5, 6], 6, make=make)
    turn.job.reused = past.kv.length  # It rides at once.
    run(model)
    wanted = begin(model, [*prompt, 5, 6], 6, warm=past.kv)
    run(model)
    assert turn.said == wanted.said
    assert (differing(packed(model, turn.kv, of_full=True), packed(model, wanted.kv, of_full=True)) > 0) == fault


def test_a_row_that_sees_no_newest_token_is_found(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = WorkingKV.append
    monkeypatch.setattr(
        WorkingKV,
        "append",
        lambda self, k, v: tuple(x[:, :, :-1] if k.shape[2] == 1 and x.shape[2] > 1 else x for x in append(self, k, v)),
    )
    assert max(difference(oracle, turn) for turn in decoded(model, ORDERS["at once"])) > 1e-2
