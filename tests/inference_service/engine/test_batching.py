"""The engine with several turns at once: right, fair, and nobody's fault is another's."""

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from agentmem.errors import Cancelled
from inference_service.domain import Sampling
from inference_service.engine import batching, prompts
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.paged.passes import Pass
from inference_service.engine.paged.writing import Written
from inference_service.engine.prompt_blocks import PromptBlocks
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import (
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

pytestmark = pytest.mark.sampled(2)


def test_tokens_that_somebody_waits_for_are_told_at_once(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, bool]] = []
    turns = [begin(model, prompt_of(model, 0, 2), 30)]

    def flush(*, soon: bool) -> None:
        told.append((len(turns[0].said), sum(len(turn.said) for turn in turns[1:]), soon))

    monkeypatch.setattr(model.engine, "flush", flush)
    while len(turns[0].said) < 10:
        model.engine.step()
    turns.append(begin(model, prompt_of(model, 1, 2), 5))
    run(model)
    at_once = {(mine, others) for mine, others, soon in told if soon}
    later = {(mine, others) for mine, others, soon in told if not soon} - at_once
    assert {mine for mine, others in later if not others} >= set(range(2, 10))
    assert (1, 0) in at_once and (30, 5) in at_once and any(others == 1 for _, others in at_once)
    assert {mine for mine, others in later if others == 5} >= set(range(20, 29))


@pytest.mark.usefixtures("few_ride")
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_first_token_does_not_wait_for_the_next_pass(model: LoadedModel, oracle: Oracle, tokens: int) -> None:
    turn = begin(model, prompt_of(model, 0, 2), tokens)
    computed: list[str] = []
    model.engine.stepped = computed.append
    while not turn.events:
        model.engine.step()
    model.engine.stepped = lambda _: None
    assert computed == ["prefill", "decode"], "the pass that its last token rides in, and none behind that"
    assert not turn.job.future.done(), "its KV comes with the next one"
    run(model)
    assert len(turn.events) == turn.generated.sampled == tokens, "it was told once"
    assert right(oracle, turn) and turn.whole


@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_let_go_once_a_long_prompt_is_done(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    cleared: list[int] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append(turn.job.remaining))
    monkeypatch.setattr(model.engine, "_tokens_per_second", 1e6)
    turn = begin(model, prompt_of(model, 0, 2), 3)
    assert len(turn.job.sequence) < 256
    run(model)
    assert cleared == [], "a short one has taken little"
    turn = begin(model, prompt_of(model, 1, 1) * 40, 3)
    if fails:
        monkeypatch.setattr(turn.job, "emit", lambda _: 1 / 0)
    while turn.job.remaining > 1:
        model.engine.step()
    assert cleared == [1], "after the last chunk: the last token rides"
    run(model)
    assert len(cleared) == 1, "not after every pass"


def test_cancelled_turns_leave_within_one_tick_and_the_others_stay(model: LoadedModel, oracle: Oracle) -> None:
    turns = [begin(model, prompt_of(model, n, 3 * n + 1), 30) for n in range(3)]
    until_told(model, turns, 4)
    seen, kv = len(turns[1].events), turns[1].job.kv
    turns[1].cancelled.set()
    model.engine.step()
    with pytest.raises(Cancelled):
        turns[1].job.future.result(0)
    assert len(turns[1].events) == seen
    run(model)
    assert all(right(oracle, turn) and turn.whole for turn in (turns[0], turns[2]))
    assert turns[1].job.kv is None and kv is not None and kv.ended, "what was computed is dropped whole"


def test_a_future_that_was_cancelled_before_it_began_is_not_run(model: LoadedModel) -> None:
    prompt = prompt_of(model, 0, 1)
    job = TurnJob(prompt, new_kv(model, 100), Decoding(5), lambda _: None, threading.Event())
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


def test_two_passes_that_fail_in_one_step_lose_nobody(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    launch, put = batching.next_tokens, Written.put

    def launched(logits: mx.array, jobs: Any) -> mx.array:
        if not failed and len(jobs) > 1 and all(len(job.result.token_ids) > 1 for job in jobs):
            failed.append("launch")
            raise RuntimeError("a kernel failed")
        return launch(logits, jobs)

    def taken(written: Written) -> None:
        if failed == ["launch"]:
            failed.append("put")
            raise RuntimeError("a kernel failed")
        put(written)

    monkeypatch.setattr(batching, "next_tokens", launched)
    monkeypatch.setattr(Written, "put", taken)
    turns = [begin(model, prompt_of(model, n, n + 1), 8) for n in range(3)]
    run(model)
    assert failed == ["launch", "put"]
    assert all(right(oracle, turn) and turn.whole and turn.generated.sampled == 8 for turn in turns)


@pytest.mark.slow("gemma3-take")
@pytest.mark.parametrize("call", ["start", "compute", "put", "take"])
def test_a_pass_that_fails_once_loses_nobody(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    failures = [MemoryError("no room")]

    def failing(original: Callable[..., Any], several: Callable[..., bool], first: bool) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            fails = bool(failures) and several(*arguments)
            if fails and first:
                raise failures.pop()
            result = original(*arguments)
            if fails:
                raise failures.pop()
            return result

        return called

    def several(of: Any) -> bool:
        return isinstance(of, Pass) and len(of.pieces) > 1

    match call:
        case "start":
            make_room = failing(model.engine._make_room, lambda pieces: len(pieces) > 1, first=True)
            monkeypatch.setattr(model.engine, "_make_room", make_room)
        case "compute":
            compute = failing(model.arenas.compute, lambda _, of, __: several(of), first=False)
            monkeypatch.setattr(model.arenas, "compute", compute)
        case "put":
            monkeypatch.setattr(Written, "put", failing(Written.put, lambda self: several(self._of), first=False))
        case "take":
            sampled = failing(batching.next_tokens, lambda _, jobs: len(jobs) > 1, first=False)
            monkeypatch.setattr(batching, "next_tokens", sampled)
    sampling = Sampling(temperature=1.0, seed=5, ignore_eos=True)
    turns = [begin(model, prompt_of(model, n, 2 * n + 1), 6 + 4 * n, sampling) for n in range(4)]
    run(model)
    assert not failures, "the fault was met"
    assert [len(turn.events) for turn in turns] == [turn.generated.sampled for turn in turns] == [6, 10, 14, 18]
    assert model.engine.running == 0
    assert all(right(oracle, turn) and turn.whole for turn in turns)
    assert sum(turn.job.alone for turn in turns) > 1
    monkeypatch.undo()
    again = [begin(model, prompt_of(model, n, 2 * n + 1), 6 + 4 * n, sampling) for n in range(4)]
    run(model)
    assert [t.said for t in again] == [t.said for t in turns], "seeds hold through it"
    assert all(differing(packed(model, a.kv), packed(model, b.kv)) == 0 for a, b in zip(again, turns, strict=True))


def test_a_turn_that_is_over_at_its_first_token_ends_also_if_the_pass_fails(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = begin(model, prompt_of(model, 0, 2), 20)
    turn = begin(model, prompt_of(model, 1, 2), 1)
    until_told(model, [turn])
    assert not turn.job.future.done()

    def failing(_: Written) -> Any:
        monkeypatch.undo()
        raise MemoryError("no room")

    monkeypatch.setattr(Written, "put", failing)
    run(model)
    assert len(turn.events) == turn.generated.sampled == len(turn.generated.token_ids) == 1, "it was not gone on with"
    assert turn.job.future.result(0)[0] is None, "KV of its last token never came"
    assert other.generated.sampled == 20
    assert right(oracle, turn) and right(oracle, other) and other.whole


@pytest.mark.parametrize("told", [0, 3])
def test_a_cancelled_turn_whose_blocks_cannot_be_named_harms_no_other(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    other = begin(model, prompt_of(model, 0, 1), 20)
    turn = begin(model, [5] * 300, 20)
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: 256)
    while not turn.job.chunks or len(turn.events) < told:
        model.engine.step()
    turn.job.blocks = PromptBlocks((b"a block",), kept=lambda _: 1 / 0)
    turn.cancelled.set()
    model.engine.step()
    with pytest.raises((Cancelled, ZeroDivisionError)):
        turn.job.future.result(0)
    run(model)
    assert other.generated.sampled == 20 and right(oracle, other)
