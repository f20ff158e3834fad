"""Steps that are compiled are those that are not: logits, packed KV and states; faults in them are found; and they keep
no memory."""

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from functools import cache as cached
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from inference_service.engine.caches.states import BatchStateCache
from inference_service.engine.caches.traced import Positions
from inference_service.engine.compiled_step import CompiledSteps
from mlx_lm.models import llama

from benchmarks.loading import load
from inference_service.engine import compiled_step
from inference_service.engine.geometry import Caches, merged
from inference_service.engine.network import Network
from inference_service.models import proof
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run
from tests.oracle import Oracle
from tests.tiny_hybrids import write_falcon_h1, write_granite4, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama
from tests.tiny_own_attention import (
    write_deepseek3,
    write_deepseek32,
    write_gemma2,
    write_kimi_linear,
    write_llama4,
    write_stablelm,
)
from tests.tiny_states import write_mamba2

Writer = Callable[[Path], Path]
Models = Callable[[Writer], LoadedModel]

PACKED = [write_llama, write_gemma3, write_gpt_oss, write_deepseek2]
STATES = [write_qwen3_next, write_granite4, write_falcon_h1, write_kimi_linear, write_mamba2]
ARRAYS = [write_stablelm, write_gemma2, write_deepseek3, write_deepseek32]
WRITERS = [*PACKED, *STATES, *ARRAYS]
CLOSE = 1e-5
"""Of the largest logit. On Linux's CPU they are equal, but those of DeepSeek V3.2, which are 2e-6 apart."""
LENGTHS = (250, 40)
"""Of two rows: six steps on the buffers are full, and grow."""


WINDOW = 16
write_narrow_gemma3 = partial(write_gemma3, window=WINDOW)


def named(writers: Sequence[Writer]) -> list[Any]:
    return [pytest.param(writer, id=writer.__name__.removeprefix("write_")) for writer in writers]


def loaded(directory: Path) -> LoadedModel:
    return load("tiny", str(directory), pool_bytes=1 << 24, hashes=ContentHashes(directory / "hashes.json"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Loads each once."""
    return cached(lambda write: loaded(write(tmp_path_factory.mktemp("model"))))


@pytest.fixture
def llama_model(models: Models) -> LoadedModel:
    return models(write_llama)


def compiling(model: LoadedModel, steps_before: int = 0) -> CompiledSteps:
    """Have the model's decode steps compiled, on whatever device."""
    network = model.engine.model
    network.steps = CompiledSteps(network.computed, steps_before=steps_before)
    return network.steps


def batch(model: LoadedModel, lengths: Sequence[int] = LENGTHS) -> Caches:
    rows = []
    for number, length in enumerate(lengths):
        caches = model.new_caches()
        prompt = [1 + (5 + 2 * number) * at % 31 for at in range(length)]
        mx.eval(model.engine.model(mx.array([prompt]), cache=caches), [cache.state for cache in caches])
        rows.append(caches)
    return merged(*rows)


def tokens(step: int, rows: int = len(LENGTHS)) -> mx.array:
    return mx.array([[3 + (7 + row) * step % 29] for row in range(rows)])


def numbers(cache: Any) -> tuple[Any, ...]:
    """What a cache knows of its rows besides their arrays."""
    return (cache.offsets,) if isinstance(cache, BatchStateCache) else (cache.offsets, cache.padding, cache.size())


def shown(cache: Any) -> list[mx.array]:
    """The arrays of a cache, without what lies behind the last token."""
    return cache.state if isinstance(cache, BatchStateCache) else [a for side in cache.buffers.view() for a in side]


def both_ways(model: LoadedModel, steps: int, *, in_place: bool = False) -> tuple[float, Caches, Caches]:
    """How far apart logits are at most, of the largest, and the caches of eager steps and of compiled ones."""
    network: Network = model.engine.model
    eager, compiled = batch(model), batch(model)
    traces, worst = CompiledSteps(network.computed, steps_before=0, in_place=in_place), 0.0
    for step in range(steps):
        network.steps = None
        wanted = network(tokens(step), cache=eager)
        network.steps = traces
        found = network(tokens(step), cache=compiled)
        mx.eval(found, [cache.state for cache in (*eager, *compiled)])
        assert network.steps is traces
        worst = max(worst, (mx.abs(found - wanted).max() / mx.abs(wanted).max()).item())
        assert [numbers(cache) for cache in compiled] == [numbers(cache) for cache in eager]
    assert traces.compiled
    network.steps = None
    return worst, eager, compiled


def assert_equal(worst: float, eager: Caches, compiled: Caches) -> None:
    """Bit for bit, but where logits are not either: then codes may be the next ones."""
    assert worst < CLOSE
    for one, other in zip(eager, compiled, strict=True):
        for a, b in zip(shown(one), shown(other), strict=True):
            x, y = np.array(a.astype(mx.float32)), np.array(b.astype(mx.float32))
            if worst == 0:
                assert np.array_equal(x, y)
            elif a.dtype == mx.uint32:
                assert (np.array(a) != np.array(b)).mean() < 0.01
            else:
                assert np.allclose(x, y, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", named(WRITERS))
def test_compiled_steps_are_eager_ones(write: Writer, models: Models) -> None:
    """In rows of different lengths, and in buffers that grow meanwhile."""
    assert_equal(*both_ways(models(write), 12))


@pytest.mark.slow
def test_a_window_slides_on_in_compiled_steps(models: Models) -> None:
    """What is older than the window and 256 tokens is dropped, twice, and the padding with it."""
    steps = WINDOW + 256 - LENGTHS[0] + 256 + 8
    worst, eager, compiled = both_ways(models(write_narrow_gemma3), steps)
    assert_equal(worst, eager, compiled)
    for cache in compiled[:3]:
        assert cache.padding == [0, 0]
        assert cache.offsets[0] - cache.buffers.filled > 256, "as many go at once"


@pytest.mark.slow
def test_a_window_that_is_too_wide_is_found(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the comparison above: it proves what short prompts at load cannot."""
    original = Positions.mask
    monkeypatch.setattr(Positions, "mask", lambda self, n, window: original(self, n, window and window + 1))
    assert both_ways(models(write_narrow_gemma3), 8)[0] > 100 * CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("write", named([write_llama, write_gemma3, write_falcon_h1]))
def test_turns_that_join_and_leave_in_the_middle_are_right(write: Writer, models: Models) -> None:
    model = models(write)
    oracle, steps = Oracle(model.spec.directory), compiling(model, steps_before=2)
    turns = [begin(model, prompt_of(model, number, repeats), 9 + 8 * number) for number, repeats in enumerate((3, 1))]
    for number, repeats in ((2, 5), (3, 2)):
        for _ in range(7):
            model.engine.step()
        turns.append(begin(model, prompt_of(model, number, repeats), 12))
    run(model)
    assert [len(turn.events) for turn in turns] == [9, 17, 12, 12]
    assert all(right(oracle, turn) for turn in turns)
    assert model.engine.model.steps is steps
    assert steps.compiled


class Counted:
    """A model that counts its calls: one a trace, and one an eager step."""

    def __init__(self, model: compiled_step.Model) -> None:
        self.model, self.calls = model, 0

    def __call__(self, tokens: mx.array, caches: Sequence[Any]) -> mx.array:
        self.calls += 1
        return self.model(tokens, caches)


def test_a_shape_is_traced_after_some_eager_steps_of_it(llama_model: LoadedModel) -> None:
    counted, caches = Counted(llama_model.engine.model.computed), batch(llama_model)
    steps = CompiledSteps(counted, steps_before=3)
    eager = 0
    for step in range(12):
        if steps.step(tokens(step), caches) is None:
            eager += 1
            llama_model.engine.model.computed(tokens(step), caches)
        assert steps.compiled == (step >= 3)
    assert (eager, counted.calls) == (6, 2), "behind 256 tokens the buffers are larger, which is another shape"
    assert caches[0].offsets == [length + 12 for length in LENGTHS]


def test_few_traces_are_kept_the_latest(llama_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_step, "_TRACES", 2)
    counted = Counted(llama_model.engine.model.computed)
    steps = CompiledSteps(counted, steps_before=0)
    batches = {rows: batch(llama_model, [9] * rows) for rows in (1, 2, 3)}
    calls = []
    for rows in (1, 2, 1, 3, 1, 2, 1):
        assert steps.step(tokens(0, rows), batches[rows]) is not None
        calls.append(counted.calls)
    assert calls == [1, 2, 2, 3, 3, 4, 4]


def unchanged(cache: Any, before: Any) -> bool:
    same = [mx.array_equal(a, b).item() for a, b in zip(shown(cache), shown(before), strict=True)]
    return numbers(cache) == numbers(before) and all(same)


@pytest.mark.slow("gemma3")
@pytest.mark.parametrize("write", named([write_llama, write_gemma3, write_falcon_h1]))
def test_other_caches_are_left_alone(write: Writer, models: Models) -> None:
    """Empty ones, those of one sequence in no batch, and of some layers only; there may be more room."""
    model = models(write)
    model.engine.model.steps = None
    counted = Counted(model.engine.model.computed)
    steps = CompiledSteps(counted, steps_before=0)
    assert steps.step(tokens(0, 1), merged(model.new_caches())) is None
    alone = [cache.extract(0) for cache in batch(model)]
    assert steps.step(tokens(0, 1), alone) is None
    assert {int(cache.offset) for cache in alone} == {LENGTHS[0]}

    mixed = batch(model, [256, 40])
    before = copy.deepcopy(mixed)
    assert steps.step(tokens(0), [*mixed[:-1], merged(model.new_caches())[-1]]) is None
    assert all(unchanged(cache, old) for cache, old in zip(mixed, before, strict=True))
    assert not counted.calls


@pytest.mark.slow("llama4")
@pytest.mark.parametrize("write", named([write_llama, write_llama4]))
def test_what_cannot_be_traced_is_decoded_by_eager_steps(
    write: Writer, models: Models, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A Llama that looks at values, and Llama 4, whose layers look at offsets. It is tried, and said, once.

    Llama 4 is compared with its own eager steps: its attention's rounding is not the oracle's, and an element that is
    near the middle of two codes then takes the other one, in one sequence of three or so.
    """
    original = llama.MLP.__call__
    monkeypatch.setattr(llama.MLP, "__call__", lambda self, x: original(self, x if x.max().item() < 1e9 else -x))
    model = models(write)
    oracle = None if write is write_llama4 else Oracle(model.spec.directory)

    def told() -> list[list[tuple[int, float | None]]]:
        turns = [begin(model, prompt_of(model, number, repeats)) for number, repeats in enumerate((3, 1))]
        run(model)
        assert not oracle or all(right(oracle, turn) for turn in turns)
        return [[(event.token_id, event.logprob) for event in turn.events] for turn in turns]

    model.engine.model.steps = None
    wanted = told()
    compiling(model)
    caplog.clear()
    assert told() == wanted
    assert model.engine.model.steps is None
    assert [record.levelname for record in caplog.records if "not compiled any more" in record.message] == ["WARNING"]


def test_steps_that_fail_when_they_are_computed_are_eager_from_then_on(
    llama_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX computes later: a kernel of the trace that does not compile is found behind it."""
    turns = [begin(llama_model, prompt_of(llama_model, number, repeats)) for number, repeats in enumerate((3, 1))]
    compiling(llama_model)
    steps, computed = llama_model.engine.model.steps, mx.async_eval
    failures = []

    def failing(*arrays: Any) -> None:
        if steps.compiled and not failures:
            failures.append(llama_model.engine.running)
            raise RuntimeError("a kernel of the trace does not compile")
        computed(*arrays)

    monkeypatch.setattr(mx, "async_eval", failing)
    run(llama_model)
    oracle = Oracle(llama_model.spec.directory)
    assert failures and all(right(oracle, turn) for turn in turns)
    assert llama_model.engine.model.steps is None


@pytest.mark.slow
def test_a_step_that_finds_no_memory_is_compiled_again(
    llama_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing about the trace. What it found missing may be there for the next step."""
    turns = [begin(llama_model, prompt_of(llama_model, number, repeats)) for number, repeats in enumerate((3, 1))]
    steps, step = compiling(llama_model), CompiledSteps.step
    failures: list[str] = ["cudaMallocAsync(&data, size, stream) failed: out of memory"]

    def failing(self: CompiledSteps, tokens: mx.array, caches: Caches) -> mx.array | None:
        if steps.compiled and failures:
            raise RuntimeError(failures.pop())
        return step(self, tokens, caches)

    monkeypatch.setattr(CompiledSteps, "step", failing)
    run(llama_model)
    oracle = Oracle(llama_model.spec.directory)
    assert not failures and all(right(oracle, turn) for turn in turns)
    assert llama_model.engine.model.steps is steps


@pytest.mark.slow
def test_a_compiled_step_copies_no_kv(llama_model: LoadedModel) -> None:
    shape = llama_model.geometry.full
    caches = llama_model.new_caches()
    for cache in caches:
        size = (1, shape.kv_heads, 60_000)
        cache.update_and_fetch(mx.random.normal((*size, shape.k_dim)), mx.random.normal((*size, shape.v_dim)))
        mx.eval(cache.state)
    rows = [type(cache).merge([cache]) for cache in caches]
    del caches, cache
    steps = CompiledSteps(llama_model.engine.model.computed, steps_before=0)
    for step in range(3):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(steps.step(tokens(step, 1), rows), [cache.state for cache in rows])
        assert mx.get_peak_memory() - before < rows[0].nbytes / 3


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("write", named([write_llama, write_falcon_h1, write_deepseek3]))
def test_traces_go_with_their_model(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncollected: None
) -> None:
    """At once: weights, which traces hold too, would be in the next model's way until a garbage collection."""
    monkeypatch.setattr(proof, "available", lambda: True)
    write(tmp_path)

    def used() -> int:
        served = loaded(tmp_path)
        assert served.engine.model.steps is not None
        steps = compiling(served)
        begin(served, prompt_of(served, 0, 1))
        run(served)
        assert steps.compiled
        served.release()
        return served.weight_bytes

    used()
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    weight_bytes = used()
    mx.clear_cache()
    assert mx.get_active_memory() - before < weight_bytes / 100
