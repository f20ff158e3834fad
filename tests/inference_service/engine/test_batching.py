"""The engine with several turns at once: right, fair, and nobody's fault is another's."""

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import GenerationBatch

from agentmem.errors import Cancelled
from inference_service.domain import Sampling
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.sampling import TokenSampler
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import Turn, begin, prompt_of, right, run
from tests.oracle import Oracle

pytestmark = pytest.mark.sampled(2)


def test_turns_that_come_and_go_are_each_right(model: LoadedModel, oracle: Oracle) -> None:
    turns = []
    for number, (repeats, tokens) in enumerate([(9, 6), (1, 30), (16, 12), (2, 9), (5, 20)]):
        turns.append(begin(model, prompt_of(model, number, repeats), tokens))
        for _ in range(3):
            model.engine.step()
    run(model)
    assert all(right(oracle, turn) for turn in turns)
    assert [len(turn.generated.token_ids) for turn in turns] == [6, 30, 12, 9, 20]
    for turn in turns:
        caches, generated = turn.job.future.result(0)
        assert {c.offset for c in caches} == {len(turn.job.sequence) + len(generated.token_ids)}
    assert len({token for turn in turns for token in turn.generated.token_ids}) > 15


def test_seeds_and_penalties_do_not_depend_on_the_company(model: LoadedModel) -> None:
    sampling = Sampling(
        temperature=1.0, top_p=0.95, seed=7, frequency_penalty=0.5, repetition_penalty=1.1, ignore_eos=True
    )
    prompt = prompt_of(model, 0, 4)
    alone = begin(model, prompt, 15, sampling)
    run(model)
    others = [begin(model, prompt_of(model, n, n), 25, Sampling(temperature=1.0, ignore_eos=True)) for n in (1, 6)]
    model.engine.step()
    accompanied = begin(model, prompt, 15, sampling)
    run(model)
    assert accompanied.generated.token_ids == alone.generated.token_ids
    assert all(other.generated.sampled == 25 for other in others)


def test_frequency_penalty_counts_only_what_was_generated(model: LoadedModel) -> None:
    """A prompt full of a token does not make that token less likely."""
    greedy = begin(model, prompt_of(model, 0, 4), 1)
    run(model)
    (favourite,) = greedy.generated.token_ids
    filled = begin(model, [favourite] * 40 + prompt_of(model, 0, 4), 1)
    run(model)
    penalized = begin(
        model, [favourite] * 40 + prompt_of(model, 0, 4), 1, Sampling(frequency_penalty=2.0, ignore_eos=True)
    )
    run(model)
    assert penalized.generated.token_ids == filled.generated.token_ids


@pytest.mark.parametrize(("where", "after"), [("sampler", 4), ("emit", 4), ("emit", 0)])
def test_one_bad_turn_harms_no_other(
    model: LoadedModel,
    oracle: Oracle,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    after: int,
) -> None:
    good = [begin(model, prompt_of(model, n, 2 + 3 * n), 16) for n in range(2)]
    bad = begin(model, prompt_of(model, 9, 2), 16)

    def poison(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if len(bad.events) >= after:
                raise ValueError("poisoned")
            return original(*arguments)

        return called

    def poison_only(sampler: TokenSampler, original: Callable[..., Any]) -> Callable[..., Any]:
        poisoned = poison(original)
        return lambda self, logprobs: (poisoned if self is sampler else original)(self, logprobs)

    if where == "sampler":
        monkeypatch.setattr(TokenSampler, "__call__", poison_only(bad.job.sampler, TokenSampler.__call__))
    else:
        bad.job.emit = poison(bad.job.emit)
    run(model)
    with pytest.raises(ValueError, match="poisoned"):
        bad.job.future.result(0)
    assert [turn.generated.sampled for turn in good] == [16, 16]
    assert all(right(oracle, turn) for turn in good), "whether their step had to be done again or not"
    assert ("a step of" in caplog.text) == (where == "sampler")
    monkeypatch.undo()
    later = begin(model, prompt_of(model, 5, 2), 5)
    run(model)
    assert right(oracle, later)


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_first_token_does_not_wait_for_the_next_step(model: LoadedModel, oracle: Oracle, tokens: int) -> None:
    turn = begin(model, prompt_of(model, 0, 2), tokens)
    steps: list[str] = []
    model.engine.stepped = steps.append
    while not turn.events:
        model.engine.step()
    model.engine.stepped = lambda _: None
    assert set(steps) == {"prefill"}
    assert not turn.job.future.done(), "its KV comes with the step"
    run(model)
    assert len(turn.events) == turn.generated.sampled == tokens, "it was told once"
    assert right(oracle, turn)


@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_let_go_once_a_prompt_is_done_and_its_rows_are_regrouped(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    done: list[str] = []
    regroup = model.engine._regroup
    monkeypatch.setattr(model.engine, "_regroup", lambda: (done.append("regrouped"), regroup()))
    monkeypatch.setattr(mx, "clear_cache", lambda: done.append("cleared"))
    turn = begin(model, prompt_of(model, 0, 2), 3)
    if fails:
        monkeypatch.setattr(turn.job, "emit", lambda _: 1 / 0)
    model.engine.step()
    assert done == ["regrouped", "cleared"]
    run(model)
    assert done.count("cleared") == 1, "not after every step"


def test_a_prompt_that_raises_ends_alone(model: LoadedModel) -> None:
    good = begin(model, prompt_of(model, 0, 2), 5)
    bad = begin(model, prompt_of(model, 1, 2), 5)

    def broken() -> Any:
        raise ValueError("broken")

    bad.job.make_caches = broken
    run(model)
    with pytest.raises(ValueError, match="broken"):
        bad.job.future.result(0)
    assert good.generated.sampled == 5


@pytest.mark.slow
def test_cancelled_turns_leave_within_one_tick_and_the_others_stay(model: LoadedModel, oracle: Oracle) -> None:
    turns = [begin(model, prompt_of(model, n, 3 * n + 1), 30) for n in range(3)]
    while any(len(turn.events) < 4 for turn in turns):
        model.engine.step()
    seen = len(turns[1].events)
    turns[1].cancelled.set()
    model.engine.step()
    with pytest.raises(Cancelled):
        turns[1].job.future.result(0)
    assert len(turns[1].events) == seen
    run(model)
    assert all(right(oracle, turn) for turn in (turns[0], turns[2]))
    assert not turns[1].job.caches, "what was computed is dropped whole"


def test_a_future_that_was_cancelled_before_it_began_is_not_run(model: LoadedModel) -> None:
    job = TurnJob(prompt_of(model, 0, 1), model.new_caches, Decoding(5), lambda _: None, threading.Event())
    assert job.future.cancel()
    model.engine.add(job)
    assert not model.engine.step()


@pytest.mark.slow
def test_memory_returns_to_where_it_was(model: LoadedModel) -> None:
    def round_of_turns() -> int:
        turns = [begin(model, prompt_of(model, n, 6), 6) for n in range(4)]
        run(model)
        del turns
        mx.clear_cache()
        return int(mx.get_active_memory())

    round_of_turns()
    before = round_of_turns()
    assert max(round_of_turns() for _ in range(5)) <= before + 4096


def test_a_prompt_joins_the_batch_without_a_copy_of_its_kv(model: LoadedModel) -> None:
    turn = begin(model, [5] * 300, tokens=3)
    places: list[list[int]] = []

    def full_layers(caches: list[Any]) -> list[int]:
        return [place_of(part) for layer in model.geometry.full.layers for part in caches[layer].buffers.arrays]

    def prefilled(_: str) -> None:
        if turn.job.caches:
            places.append(full_layers(turn.job.caches))

    model.engine.stepped = prefilled
    while not model.engine.running:
        model.engine.step()
    places.append(full_layers(model.engine._groups[0].prompt_cache))
    model.engine.stepped = lambda _: None
    assert places[-1] == places[-2], "the batch's first step has written where the prompt's KV is"
    run(model)


def place_of(array: mx.array) -> int:
    """Where its bytes are. Nobody holds them because of this."""
    mx.eval(array)
    return np.asarray(memoryview(array)).ctypes.data  # type: ignore[arg-type]


@pytest.mark.slow("gemma3-next")
@pytest.mark.parametrize("call", ["extract_cache", "filter", "extend", "next"])
def test_a_batch_that_fails_once_loses_nobody(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whichever operation of the batch raises half-way, every turn ends right, and the engine comes to rest."""
    original, failures = getattr(GenerationBatch, call), [MemoryError("no room")]

    def failing(self: GenerationBatch, *arguments: Any) -> Any:
        result = original(self, *arguments)
        if failures and len(self) >= (0 if call == "extract_cache" else 2):
            raise failures.pop()
        return result

    monkeypatch.setattr(GenerationBatch, call, failing)
    sampling = Sampling(temperature=1.0, seed=5, ignore_eos=True)
    turns = [begin(model, prompt_of(model, n, 2 * n + 1), 6 + 4 * n, sampling) for n in range(4)]
    run(model)
    assert not failures, "the fault was met"
    assert [len(turn.events) for turn in turns] == [turn.generated.sampled for turn in turns] == [6, 10, 14, 18]
    assert model.engine.running == 0
    assert all(right(oracle, turn) for turn in turns)
    monkeypatch.undo()
    again = [begin(model, prompt_of(model, n, 2 * n + 1), 6 + 4 * n, sampling) for n in range(4)]
    run(model)
    assert [t.generated.token_ids for t in again] == [t.generated.token_ids for t in turns], "seeds hold through it"


def test_a_turn_that_is_over_at_its_first_token_ends_also_if_the_step_fails(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = begin(model, prompt_of(model, 0, 2), 20)
    turn = begin(model, prompt_of(model, 1, 2), 1)
    while not turn.events:
        model.engine.step()
    assert not turn.job.future.done()

    def failing(_: GenerationBatch) -> Any:
        monkeypatch.undo()
        raise MemoryError("no room")

    monkeypatch.setattr(GenerationBatch, "next", failing)
    run(model)
    assert len(turn.events) == turn.generated.sampled == len(turn.generated.token_ids) == 1, "it was not gone on with"
    assert turn.job.future.result(0)[0] == [], "KV of its last token never came"
    assert other.generated.sampled == 20
    assert right(oracle, turn) and right(oracle, other)


def test_a_cancelled_turn_whose_caches_cannot_be_copied_is_only_cancelled(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [begin(model, prompt_of(model, n, 2), 20) for n in range(2)]
    while any(len(turn.events) < 3 for turn in turns):
        model.engine.step()

    def failing(*_: Any) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(GenerationBatch, "extract_cache", failing)
    turns[0].cancelled.set()
    model.engine.step()
    monkeypatch.undo()
    with pytest.raises(Cancelled):
        turns[0].job.future.result(0)
    run(model)
    assert turns[1].generated.sampled == 20


def test_a_prompt_of_one_token(model: LoadedModel, oracle: Oracle) -> None:
    turn = begin(model, [5], 6)
    run(model)
    assert right(oracle, turn)


def test_a_stop_string_is_trimmed_off_wherever_it_comes(model: LoadedModel) -> None:
    """Also right after a sliding layer dropped old tokens: it keeps more than its window."""
    met = 0
    for number in range(8):
        prompt = prompt_of(model, number, 16)[:300]  # with a window of 64, layers drop tokens some 20 steps later
        free = begin(model, prompt, 30)
        run(model)
        ends = [sum(len(event.text) for event in free.events[: n + 1]) for n in range(30)]
        text = "".join(event.text for event in free.events)
        for stop, end in ((text[end - 3 : end], end) for end in ends[17:26]):
            if len(stop) < 3 or "\ufffd" in stop or text.index(stop) != end - 3:
                continue
            turn = Turn(None)  # type: ignore[arg-type]
            decoding = Decoding(30, sampling=Sampling(ignore_eos=True), stop=(stop,), top_logprobs=0)
            turn.job = TurnJob(prompt, model.new_caches, decoding, turn.events.append, turn.cancelled)
            model.engine.add(turn.job)
            run(model)
            caches, generated = turn.job.future.result(0)
            assert generated.stop_string == stop
            assert {c.offset for c in caches} == {len(prompt) + len(generated.token_ids)}
            met += 1
        if met >= 3:
            break
    assert met
