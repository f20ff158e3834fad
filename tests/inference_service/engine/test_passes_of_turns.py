"""Rows of one pass that join and leave at any time: each is what it is alone, to the bit."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from agentmem.v1 import types_pb2
from inference_service.domain import Sampling
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.passes import Pass
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_rows import LENGTHS, REPEATS, Rows, alone, decoded, same
from tests.inference_service.engine.batch_turns import (
    EXACT,
    Turn,
    begin,
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

PENALTIES = Sampling(
    temperature=1.0, top_p=0.95, seed=7, frequency_penalty=0.5, repetition_penalty=1.1, ignore_eos=True
)


@pytest.mark.parametrize("sampling", [EXACT, PENALTIES], ids=["greedy", "penalties"])
@pytest.mark.parametrize("without", [(), (0, 1, 2, 3), (2,)])
def test_rows_are_what_each_is_alone(
    model: LoadedModel, oracle: Oracle, without: tuple[int, ...], sampling: Sampling
) -> None:
    turns: Rows = {}
    for number, repeats in enumerate(REPEATS):
        prompt = prompt_of(model, number, repeats)
        turns[number] = begin(model, prompt, LENGTHS[number], sampling, arrays=number not in without)
        for _ in range(3):
            model.engine.step()
            kv = turns[number].job.kv
            assert kv is None or bool(kv.working) <= kv.arrays
    run(model)
    assert not any(turn.job.alone for turn in turns.values())
    assert same(model, turns, alone(model, sampling=sampling))
    assert sampling is not EXACT or all(right(oracle, turn) for turn in turns.values())


def test_a_model_whose_rows_are_not_right_together_gets_one_a_pass(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.engine.model, "rows_together", False)
    compute, pieces = model.arenas.compute, set()

    def counted(network: Any, of: Pass, tokens: mx.array) -> Any:
        pieces.add((len(of.pieces), of.rows))
        return compute(network, of, tokens)

    monkeypatch.setattr(model.arenas, "compute", counted)
    turns = decoded(model, {0: 0, 1: 3, 2: 6, 3: 9}).values()
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
