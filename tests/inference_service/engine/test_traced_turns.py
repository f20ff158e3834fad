"""Turns by traced passes: they say what they say without, and traces that fail are given up and keep no memory."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama

from inference_service.domain import TokenEvent
from inference_service.engine.device import on_cuda
from inference_service.engine.paged.passes import Pass
from inference_service.engine.paged.traces import Traces
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_rows import write_narrow_gemma3
from tests.inference_service.engine.batch_turns import begin, prompt_of, run
from tests.inference_service.engine.test_traces import ONE, Writer, loaded
from tests.tiny_hybrids import write_falcon_h1
from tests.tiny_models import write_llama

pytestmark = pytest.mark.sampled(3)


def in_kernels(directory: Path) -> LoadedModel:
    """A model whose pool is in blocks for kernels."""
    model = loaded(directory)
    model.arenas.kernels = ONE
    return model


def traced(model: LoadedModel) -> Traces:
    model.arenas.trace(model.engine.model.computed)
    assert model.arenas.traces is not None
    return model.arenas.traces


def rows_run(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows of each traced pass."""
    runs: list[int] = []
    original = traces.run

    def run(of: Pass, *arguments: Any) -> Any:
        runs.append(of.tokens)
        return original(of, *arguments)

    monkeypatch.setattr(traces, "run", run)
    return runs


Told = list[list[TokenEvent]]


def two_turns(model: LoadedModel) -> Told:
    turns = [begin(model, prompt_of(model, number, repeats)) for number, repeats in enumerate((3, 1))]
    run(model)
    return [turn.events for turn in turns]


def same(found: Told, wanted: Told) -> bool:
    """But for rounding of products, which rows that are filled up change."""
    assert [len(events) for events in found] == [len(events) for events in wanted]
    pairs = [pair for both in zip(found, wanted, strict=True) for pair in zip(*both, strict=True)]
    errors = np.array([(one.logprob, other.logprob) for one, other in pairs], np.float64)
    alike = [one.token_id == other.token_id for one, other in pairs]
    return all(alike) and bool(np.abs(errors[:, 0] - errors[:, 1]).max() < (0.1 if on_cuda() else 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_narrow_gemma3, write_falcon_h1])
def test_turns_that_join_and_leave_in_the_middle_are_what_they_are_without(
    write: Writer, tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = in_kernels(write(tmp_path))

    def told() -> Told:
        turns = [begin(model, prompt_of(model, number, each), 9 + 8 * number) for number, each in enumerate((3, 1))]
        for number, repeats in ((2, 5), (3, 2)):
            for _ in range(7):
                model.engine.step()
            turns.append(begin(model, prompt_of(model, number, repeats), 12))
        run(model)
        return [turn.events for turn in turns]

    wanted = told()
    assert [len(events) for events in wanted] == [9, 17, 12, 12]
    kept = traced(model)
    runs = rows_run(kept, monkeypatch)
    assert same(told(), wanted)
    assert model.arenas.traces is kept and len(runs) > len(set(runs))


@pytest.mark.slow
@pytest.mark.usefixtures("in_blocks")
def test_what_cannot_be_traced_goes_on_without_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = llama.MLP.__call__
    monkeypatch.setattr(llama.MLP, "__call__", lambda self, x: original(self, x if x.max().item() < 1e9 else -x))
    model = in_kernels(write_llama(tmp_path))
    wanted = two_turns(model)
    traced(model)
    for _ in range(2):
        assert same(two_turns(model), wanted)
    assert model.arenas.traces is None
    assert [record.levelname for record in caplog.records if "not traced any more" in record.message] == ["WARNING"]


class Failing:
    """A network's traces, of which one pass fails when it is computed."""

    def __init__(self, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures, self._words = 0, words
        original = Traces.run

        def run(traced: Traces, *of: Any) -> Any:
            found = original(traced, *of)
            if not self.failures:
                self.failures += 1
                raise RuntimeError(self._words)
            return found

        monkeypatch.setattr(Traces, "run", run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        ("a kernel of the trace does not compile", False),
        ("cudaMallocAsync(&data, size, stream) failed: out of memory", True),
    ],
)
def test_a_traced_pass_that_fails_is_the_last_unless_there_was_no_memory(
    words: str, goes_on: bool, tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that was missing may be there for the next one; it says nothing about the trace. Its turns go on."""
    model, failing = in_kernels(write_llama(tmp_path)), Failing(words, monkeypatch)
    wanted = two_turns(model)
    traced(model)
    assert same(two_turns(model), wanted)
    assert failing.failures
    assert (model.arenas.traces is not None) == goes_on


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_falcon_h1])
def test_traces_go_with_their_model(write: Writer, tmp_path: Path, replayed: None, uncollected: None) -> None:
    """At once: weights, which traces hold too, would be in the next model's way until a garbage collection."""
    write(tmp_path)

    def used() -> int:
        served = in_kernels(tmp_path)
        traced(served)
        two_turns(served)
        assert served.arenas.traces is not None
        served.release()
        return served.weight_bytes

    used()
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    weight_bytes = used()
    mx.clear_cache()
    assert mx.get_active_memory() - before < weight_bytes / 100
