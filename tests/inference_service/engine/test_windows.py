"""Windows that are captured during prefill: what a hybrid model resumes from."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from inference_service.engine.caches import KVBuffers, QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.caches.sliding import SLACK
from inference_service.engine.checkpoints import Checkpoint, captured

from benchmarks.loading import load
from inference_service.domain import Sampling, TokenEvent
from inference_service.engine import batching, prompts
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.geometry import Caches
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_gpt_oss, write_llama

TOLERANCE = 1e-3
CHECKPOINTS = (40, 64, 200, 450)
RESUMED = (40, 333, 450)


@pytest.fixture(scope="module", params=[write_gemma3, write_gpt_oss], ids=["gemma3", "gpt_oss"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load("tiny", str(directory), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json"))


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Oracle:
    return Oracle(directory)


@pytest.fixture(scope="module")
def prompt(model: LoadedModel) -> list[int]:
    text = "The boat by the sea, ü€😀 nobody knows. Who told you that? The house is green. "
    return model.tokenizer.encode(text * 20, parse_special=False)[:470]


def job_of(
    model: LoadedModel,
    sequence: Sequence[int],
    checkpoints: Sequence[int] = (),
    warm: Caches | None = None,
    events: list[TokenEvent] | None = None,
) -> TurnJob:
    """A prefill, or with `events` a turn of 24 tokens."""
    decoding = None if events is None else Decoding(24, sampling=Sampling(ignore_eos=True), top_logprobs=0)
    emit = (lambda _: None) if events is None else events.append
    make = model.new_caches if warm is None else lambda: warm
    job = TurnJob(sequence, make, decoding, emit, threading.Event(), checkpoints=checkpoints)
    model.engine.add(job)
    return job


def finished(model: LoadedModel, job: TurnJob) -> Caches:
    while model.engine.step():
        pass
    return job.future.result(0)[0]


def same(found: Sequence[KVBuffers], wanted: Sequence[KVBuffers]) -> bool:
    return all(
        np.array_equal(np.array(a), np.array(b))
        for one, other in zip(found, wanted, strict=True)
        for a, b in zip(one.arrays, other.arrays, strict=True)
    )


def resumed(model: LoadedModel, whole: Caches, window: Sequence[KVBuffers], tokens: int) -> Caches:
    """Caches of so many tokens: the beginning of the full layers, and a window."""
    left = iter(window)
    caches: Caches = []
    for cache in whole:
        if isinstance(cache, SlidingQuantizedKVCache):
            keys, values = next(left).both()
            copied = KVBuffers(keys, values, keys.tokens)
            caches.append(SlidingQuantizedKVCache.restored(cache.window, copied, tokens, cache.codec))
        else:
            beginning = cache.buffers.map(lambda part: part.between(0, tokens), tokens)
            caches.append(QuantizedKVCache.restored(beginning, cache.codec))
    return caches


@pytest.mark.slow("gpt_oss-100", "gemma3-4096")
@pytest.mark.parametrize("chunk", [100, 4096])
def test_a_window_is_what_a_prefill_up_to_there_leaves(
    model: LoadedModel, prompt: list[int], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: chunk)
    job = job_of(model, prompt, CHECKPOINTS, events=[])
    finished(model, job)
    assert tuple(job.captured) == CHECKPOINTS
    for at, (position, window, _) in job.captured.items():
        assert position == at
        caches = finished(model, job_of(model, prompt[:at], [p for p in CHECKPOINTS if p < at]))
        sliding = [cache for cache in caches if isinstance(cache, SlidingQuantizedKVCache)]
        assert len(window) == len(sliding)
        assert {buffers.filled for buffers in window} == {min(at, sliding[0].window + SLACK)}
        assert same(window, [cache.buffers.last(min(at, cache.window + SLACK)) for cache in sliding])


@pytest.fixture(scope="module")
def whole(model: LoadedModel, prompt: list[int]) -> TurnJob:
    """A prefill that is over, with a window where it is resumed, and one of a token later."""
    job = job_of(model, prompt, [at + late for at in RESUMED for late in (0, 1)])
    finished(model, job)
    return job


@pytest.mark.slow("gemma3-450-0", "gpt_oss-333-0", "gpt_oss-450-0")
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("at", RESUMED)
def test_a_window_is_enough_to_go_on(
    model: LoadedModel, oracle: Oracle, prompt: list[int], whole: TurnJob, at: int, late: int
) -> None:
    """From the full layers' beginning and the window the model goes on right; from a window of one token later, not."""
    caches = resumed(model, whole.caches, whole.captured[at + late].window, at)
    if late and at < 64:  # Nothing was dropped yet: a layer that holds a token more has another length.
        assert caches[0].buffers.filled == at + 1
        return
    other = [*prompt[:at], *model.tokenizer.encode(" and then something else 😀", parse_special=False)]
    events: list[TokenEvent] = []
    finished(model, job_of(model, other, warm=caches, events=events))
    assert len({event.token_id for event in events}) > 8, "an output that does not vary proves nothing"
    wanted = oracle.logprobs_of([*other, *(event.token_id for event in events)], len(other))
    difference = float(np.abs(wanted - np.array([event.logprob for event in events])).max())
    assert difference > 10 * TOLERANCE if late else difference < TOLERANCE


def test_a_window_shares_no_memory_with_the_caches(model: LoadedModel, prompt: list[int]) -> None:
    caches = finished(model, job_of(model, prompt))
    window = (captured(caches) or Checkpoint(0)).window
    sliding = [cache.buffers for cache in caches if isinstance(cache, SlidingQuantizedKVCache)]
    assert window
    for one, other in zip(window, sliding, strict=True):
        for pair in zip(one.arrays, other.arrays, strict=True):
            assert not np.shares_memory(*(np.array(array, copy=False) for array in pair))


@pytest.mark.slow("gemma3")
def test_what_is_not_computed_is_not_captured(model: LoadedModel, prompt: list[int]) -> None:
    """Not where a turn starts from, nor behind its end, nor at its end, behind which it generates."""
    warm = finished(model, job_of(model, prompt[:200]))
    job = job_of(model, prompt, [0, 100, 200, 300, len(prompt), len(prompt) + 5], warm, [])
    finished(model, job)
    assert list(job.captured) == [300]
    job = job_of(model, prompt, [len(prompt)])
    finished(model, job)
    assert list(job.captured) == [len(prompt)], "a prefill comes to the end"


@pytest.mark.slow("gpt_oss")
def test_a_turn_that_starts_again_captures_again(
    model: LoadedModel, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[TokenEvent] = []
    job = job_of(model, prompt, CHECKPOINTS, events=events)
    while len(events) < 3:
        model.engine.step()
    before = dict(job.captured)
    with monkeypatch.context() as patch:
        patch.setattr(batching.GenerationBatch, "next", lambda _: 1 / 0)
        model.engine.step()
    assert job.alone
    finished(model, job)
    assert len(events) == 24
    assert tuple(job.captured) == CHECKPOINTS
    assert all(
        same(job.captured[at].window, before[at].window) and job.captured[at] is not before[at] for at in CHECKPOINTS
    )


def test_a_model_without_sliding_layers_captures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its chunks are not cut."""
    model = load("tiny", str(write_llama(tmp_path / "model")), hashes=ContentHashes(tmp_path / "weights.json"))
    starts: list[int] = []

    def chunk(position: int, *_: float) -> int:
        starts.append(position)
        return 50

    monkeypatch.setattr(prompts, "chunk_tokens", chunk)
    job = job_of(model, list(range(3, 103)), [30, 60])
    finished(model, job)
    assert not job.captured
    assert starts == [0, 50]
