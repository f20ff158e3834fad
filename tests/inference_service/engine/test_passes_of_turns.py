"""Rows of one pass that join and leave at any time: each is what it is alone, to the bit. And faults to be found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from agentmem.v1 import types_pb2
from inference_service.domain import Sampling
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.passes import Pass
from inference_service.engine.paged.sequence import WorkingKV
from inference_service.engine.paged.store import Written
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import (
    EXACT,
    Turn,
    begin,
    difference,
    differing,
    new_kv,
    packed,
    prompt_of,
    right,
    run,
    until_told,
)
from tests.oracle import Oracle

pytestmark = pytest.mark.sampled(3)

REPEATS, TOKENS = (1, 9, 16, 3, 1), (24, 10, 14, 30, 1)
PENALTIES = Sampling(
    temperature=1.0, top_p=0.95, seed=7, frequency_penalty=0.5, repetition_penalty=1.1, ignore_eos=True
)
ORDERS = {"one after the other": (0, 3, 6, 9, 12), "at once": (0,) * 5, "longest first": (8, 3, 0, 5, 11)}


def decoded(model: LoadedModel, joins: tuple[int, ...], sampling: Sampling = EXACT, **options: Any) -> list[Turn]:
    """Turns that are queued at these ticks."""
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
    """Whether they said the same, and leave the same bits."""
    return all(
        one.said == other.said and one.whole and differing(packed(model, one.kv), packed(model, other.kv)) == 0
        for one, other in zip(turns, others, strict=True)
    )


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("sampling", [EXACT, PENALTIES], ids=["greedy", "penalties"])
def test_rows_are_what_each_is_alone(
    model: LoadedModel, oracle: Oracle, order: tuple[int, ...], sampling: Sampling
) -> None:
    passes_of_several: list[int] = []
    model.engine.stepped = lambda _: passes_of_several.append(model.engine.running)
    turns = decoded(model, order, sampling)
    model.engine.stepped = lambda _: None
    assert max(passes_of_several) > 2
    assert not any(turn.job.alone for turn in turns)
    assert [len(turn.events) for turn in turns] == list(TOKENS)
    if sampling is EXACT:
        assert len({token for turn in turns for token in turn.said}) > 15
        assert all(right(oracle, turn) for turn in turns)
    assert same(model, turns, by_themselves(model, sampling))


@pytest.mark.parametrize("sampling", [EXACT, PENALTIES], ids=["greedy", "penalties"])
@pytest.mark.parametrize("without", [(0, 1, 2, 3, 4), (2,)])
def test_turns_without_memory_for_arrays_are_what_they_are_with_it(
    model: LoadedModel, oracle: Oracle, without: tuple[int, ...], sampling: Sampling
) -> None:
    turns = []
    for number, repeats in enumerate(REPEATS):
        prompt = prompt_of(model, number, repeats)
        turns.append(begin(model, prompt, TOKENS[number], sampling, arrays=number not in without))
        for _ in range(3):
            model.engine.step()
            kv = turns[-1].job.kv
            assert kv is None or bool(kv.working) <= kv.arrays
    run(model)
    assert not any(turn.job.alone for turn in turns)
    assert same(model, turns, by_themselves(model, sampling))
    assert sampling is not EXACT or all(right(oracle, turn) for turn in turns)


def test_greedy_turns_that_want_no_logprobs_say_the_same(model: LoadedModel) -> None:
    """Alone and beside others that want some: the likeliest are taken at once."""
    wanted = by_themselves(model)
    quick = decoded(model, ORDERS["at once"], top_logprobs=None)
    assert same(model, quick, wanted)
    mixed = [
        begin(model, prompt_of(model, n, REPEATS[n]), TOKENS[n], top_logprobs=None if n % 2 else 0)
        for n in range(len(REPEATS))
    ]
    run(model)
    assert same(model, mixed, wanted)
    assert [event.logprob for event in mixed[1].events] == [None] * TOKENS[1]


def test_a_model_whose_rows_are_not_right_together_gets_one_a_pass(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.engine.model, "rows_together", False)
    compute, pieces = model.arenas.compute, set()

    def counted(network: Any, of: Pass, tokens: mx.array) -> Any:
        pieces.add((len(of.pieces), of.rows))
        return compute(network, of, tokens)

    monkeypatch.setattr(model.arenas, "compute", counted)
    turns = decoded(model, ORDERS["one after the other"])
    assert pieces == {(1, False)}
    assert all(right(oracle, turn) and turn.whole and not turn.job.alone for turn in turns)


def ending(turn: Turn) -> tuple[int, str]:
    """A token that it was told once, and the first text that ends there."""
    texts = [event.text for event in turn.events]
    for last in range(8, len(texts)):
        text, once = "".join(texts[: last + 1]), turn.said[last] not in turn.said[:last]
        stop = text[-2:]
        if once and texts[last].strip() and stop.isascii() and text.find(stop) == len(text) - 2:
            return last, stop
    raise AssertionError("there is none")


@pytest.mark.parametrize("end", ["length", "stop string", "end of sequence"])
@pytest.mark.parametrize("company", [False, True], ids=["alone", "beside others"])
def test_kv_is_of_what_was_generated_however_a_turn_ends(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, end: str, company: bool
) -> None:
    """The next pass is under way when the last token is looked at: its KV is there, and none of what follows."""
    prompt = prompt_of(model, 1, 7)
    free = begin(model, prompt, 30)
    run(model)
    others = [begin(model, prompt_of(model, n, n), 30) for n in (2, 4)] if company else []
    until_told(model, others, 3)
    last, stop = ending(free)
    tokens, sampling = 30, EXACT
    options: dict[str, Any] = {}
    match end:
        case "length":
            tokens = last + 1
        case "stop string":
            options = {"stop": (stop,)}
        case "end of sequence":
            monkeypatch.setattr(model.tokenizer, "eos_ids", frozenset([free.said[last]]), raising=False)
            sampling = Sampling()
    turn = begin(model, prompt, tokens, sampling, **options)
    run(model)
    reasons = {
        "length": types_pb2.FINISH_REASON_LENGTH,
        "stop string": types_pb2.FINISH_REASON_STOP_STRING,
        "end of sequence": types_pb2.FINISH_REASON_STOP,
    }
    assert turn.generated.reason == reasons[end]
    kept = turn.generated.token_ids
    assert kept == free.said[: len(kept)] and turn.said == free.said[: len(turn.said)]
    assert end == "stop string" or len(kept) == last + 1
    assert turn.whole
    assert differing(packed(model, turn.kv), packed(model, free.kv, len(prompt) + len(kept))) == 0
    assert all(right(oracle, other) and other.whole for other in others)
    more = begin(model, [*prompt, *kept, *prompt_of(model, 5, 1)], 8, warm=turn.kv)
    run(model)
    assert right(oracle, more) and more.job.chunks[0].position == len(prompt) + len(kept)


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
    """What is put into blocks is a token behind its place."""
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
