"""Chunks run between others' steps: who waits for whom, where they stop, and the first token after the last."""

import os
import sys
import time

import mlx.core as mx
import pytest

from agentmem.errors import Cancelled
from inference_service.engine import prefill, prompts
from inference_service.engine.device import on_cpu
from inference_service.engine.scheduling import SECONDS_ALONE, SECONDS_WHILE_OTHERS_DECODE
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, differing, packed, prompt_of, right, run, until_told
from tests.oracle import Oracle


@pytest.mark.parametrize(
    ("tokens", "chunks"),
    [(1, [1]), (2, [2]), (16, [16]), (17, [17]), (64, [64]), (65, [64, 1]), (200, [199, 1])],
    ids=str,
)
def test_the_first_token_comes_from_the_pass_that_the_last_one_rides_in(
    model: LoadedModel, oracle: Oracle, tokens: int, chunks: list[int]
) -> None:
    turn = begin(model, prompt_of(model, tokens, 20)[:tokens], tokens=3)
    until_told(model, [turn])
    assert [chunk.tokens for chunk in turn.job.chunks] == chunks
    assert model.engine.running == 1
    run(model)
    assert right(oracle, turn) and turn.whole


def test_nobody_asks_for_logits_where_nothing_is_generated(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.arenas, "compute", lambda *_: 1 / 0)
    turn = begin(model, prompt_of(model, 3, 20)[:50], tokens=None)
    run(model)
    assert [chunk.tokens for chunk in turn.job.chunks] == [50]
    assert turn.whole


@pytest.mark.slow
def test_a_short_prompt_overtakes_a_long_one(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: 64)
    past = prompt_of(model, 1, 80)
    remembered = begin(model, past, tokens=None)
    run(model)
    long = begin(model, prompt_of(model, 0, 60), tokens=2)
    for _ in range(5):
        model.engine.step()
    assert not long.events
    short = begin(model, [*past, *prompt_of(model, 1, 2)[:50]], tokens=4, warm=remembered.kv)
    for _ in range(3):
        model.engine.step()
    assert short.events
    assert not long.events
    run(model)
    assert long.generated.sampled == 2


def test_streams_go_on_while_a_long_prompt_is_computed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: 64)
    stream = begin(model, prompt_of(model, 0, 1), tokens=40)
    for _ in range(3):
        model.engine.step()
    begin(model, prompt_of(model, 1, 70), tokens=1)
    model.engine.step()  # A CPU tells this pass's token as well as the one before.
    for step in range(20):
        before = len(stream.events)
        model.engine.step()
        assert len(stream.events) == before + 1, f"no token in tick {step}"
        assert not (on_cpu() and model.engine._flights), "a chunk's time would begin with the pass"
    run(model)


@pytest.mark.usefixtures("few_ride")
def test_chunks_are_short_only_while_others_decode(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []

    def chunk(position: int, speed: float, max_seconds: float) -> int:
        seconds.append(max_seconds)
        return 64

    monkeypatch.setattr(prompts, "chunk_tokens", chunk)
    stream = begin(model, prompt_of(model, 0, 1), tokens=6)
    until_told(model, [stream])
    begin(model, prompt_of(model, 1, 60), tokens=1)
    while model.engine.running:
        model.engine.step()
    assert len(stream.events) == 6
    during = len(seconds) - 1
    model.engine.step()
    assert during > 3
    assert seconds == [SECONDS_ALONE, *[SECONDS_WHILE_OTHERS_DECODE] * (during - 1), SECONDS_ALONE, SECONDS_ALONE]
    run(model)


@pytest.mark.slow("gemma3")
def test_who_arrives_waits_for_a_layer_and_not_for_a_chunk(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = prompt_of(model, 1, 20)
    remembered = begin(model, past, tokens=None)
    run(model)
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: 512)
    monkeypatch.setattr(model.engine, "_tokens_per_second", 0.0)  # Unknown: one layer at a time.
    monkeypatch.setattr(model.engine, "asked", lambda: True)
    long = begin(model, prompt_of(model, 0, 20), tokens=8)
    model.engine.step()
    assert long.job.chunk is not None
    assert not long.job.chunks, "the chunk is not complete"
    assert long.job.remaining == long.job.tokens
    monkeypatch.setattr(model.engine, "asked", lambda: False)
    short = begin(model, [*past, *prompt_of(model, 1, 2)[:20]], tokens=8, warm=remembered.kv)
    for _ in range(3):
        model.engine.step()
        assert not long.job.chunks or short.events
    assert short.events
    run(model)
    assert right(oracle, long)
    assert right(oracle, short)


def test_streams_wait_for_a_chunk_no_longer_than_they_may(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = begin(model, prompt_of(model, 0, 1), tokens=20)
    for _ in range(3):
        model.engine.step()
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: 512)
    monkeypatch.setattr(prompts, "SECONDS_WHILE_OTHERS_DECODE", 0.0)
    monkeypatch.setattr(model.engine, "_tokens_per_second", 0.0)  # Unknown: one layer at a time.
    long = begin(model, prompt_of(model, 1, 20), tokens=1)
    steps = 0
    while not long.job.chunks:
        before = len(stream.events)
        model.engine.step()
        assert len(stream.events) == before + 1 + (on_cpu() and not steps)
        steps += 1
    assert steps > 1
    run(model)
    assert long.generated.sampled == 1


def test_cancelled_between_two_layers(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.engine, "_tokens_per_second", 0.0)  # Unknown: one layer at a time.
    monkeypatch.setattr(model.engine, "asked", lambda: True)
    turn = begin(model, prompt_of(model, 0, 20), tokens=1)
    model.engine.step()
    assert turn.job.chunk is not None
    turn.cancelled.set()
    assert not model.engine.step()
    with pytest.raises(Cancelled):
        turn.job.future.result(0)
    assert turn.job.chunk is None
    assert turn.job.kv is None


def test_a_stopped_chunk_asks_for_its_layers_once(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, stops = prompt_of(model, 3, 6), [0]

    def asked() -> bool:
        stops[0] += 1
        return True

    monkeypatch.setattr(model.engine, "_tokens_per_second", 0.0)  # Unknown: one layer at a time.
    monkeypatch.setattr(model.engine, "asked", asked)
    stopped = begin(model, prompt, None)
    run(model)
    assert stops[0] == model.geometry.all_layers - 1
    assert len(stopped.job.chunks) == 1
    monkeypatch.setattr(model.engine, "asked", lambda: False)
    monkeypatch.setattr(model.engine, "_tokens_per_second", 1e9)
    whole = begin(model, prompt, None)
    run(model)
    assert differing(packed(model, stopped.kv), packed(model, whole.kv)) == 0


def product() -> mx.array:
    found = mx.random.normal((400, 400))
    for _ in range(10):
        found = mx.tanh(found @ found)
    return found


def test_on_a_cpu_it_counts_what_the_busiest_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX computes on a thread of its own, which is none of Python's; what it waits for does not count."""
    evaluate = mx.eval

    def late(arrays: list[mx.array]) -> None:
        time.sleep(0.5)
        evaluate(arrays)

    monkeypatch.setattr(mx, "eval", late)
    monkeypatch.setattr(prefill, "on_cpu", lambda: True)
    clock, used = time.monotonic(), time.process_time()
    found = prefill._seconds_of([product()])
    clock, used = time.monotonic() - clock, time.process_time() - used
    assert 0 < found <= used
    assert found <= clock - 0.5
    if on_cpu() and sys.platform == "linux":
        assert found > used / (2 * (os.cpu_count() or 1)), "of a thread that computed; this one waited"


def test_chunks_beside_busy_processes_stay_as_large(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "_processor_seconds", iter([{"1": 0.0}, {"1": 1e-5, "2": 5e-6}] * 1000).__next__)
    monkeypatch.setattr(prefill, "on_cpu", lambda: True)
    begin(model, prompt_of(model, 0, 20)[:200], tokens=1)
    monkeypatch.setattr(model.engine, "_tokens_per_second", 0.0)  # Unknown: one layer at a time.
    run(model)
    assert model.engine._tokens_per_second == pytest.approx(199 / (1e-5 * model.geometry.layers))
