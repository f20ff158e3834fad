"""Checkpoints on the way of a long prompt: where they are captured, and that the model goes on right from each."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from inference_service.engine.caches import KVBuffers, QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.caches.states import StateCache
from inference_service.engine.checkpoints import Checkpoint

from benchmarks.loading import load
from inference_service.domain import Sampling, TokenEvent
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.geometry import Caches
from inference_service.memory.spacing import STEP, periodic_positions
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.oracle import Oracle
from tests.tiny_hybrids import write_baichuan_m1, write_qwen3_next
from tests.tiny_models import write_gemma3

pytestmark = pytest.mark.sampled(3)

CONTEXT, PROMPT = 8192, 4600
WRITERS = {"qwen3_next": write_qwen3_next, "baichuan_m1": write_baichuan_m1, "gemma3": write_gemma3}


@pytest.fixture(scope="module", params=WRITERS.values(), ids=WRITERS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"), context=CONTEXT)


@pytest.fixture(scope="module")
def model(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load("tiny", str(directory), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json"))


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return [int(token) for token in np.random.default_rng(0).integers(3, 300, PROMPT)]


def computed(model: LoadedModel, sequence: Sequence[int], warm: Caches | None = None) -> TurnJob:
    """A prompt that is computed, with the checkpoints that a turn keeps of it."""
    positions = periodic_positions(model.checkpoint_distance, len(sequence))
    make = model.new_caches if warm is None else lambda: warm
    job = TurnJob(sequence, make, None, lambda _: None, threading.Event(), checkpoints=positions)
    finish(model, job)
    return job


def finish(model: LoadedModel, job: TurnJob) -> None:
    model.engine.add(job)
    while model.engine.step():
        pass
    job.future.result(0)


def resumed(caches: Caches, checkpoint: Checkpoint) -> Caches:
    """The beginning of full attention's caches, and the others from a checkpoint."""
    windows, states, at = iter(checkpoint.window), iter(checkpoint.states), checkpoint.position
    found: Caches = []
    for cache in caches:
        if isinstance(cache, QuantizedKVCache):
            beginning = cache.buffers.map(lambda part: part.between(0, at), at)
            found.append(QuantizedKVCache.restored(beginning, cache.codec))
        elif isinstance(cache, SlidingQuantizedKVCache):
            keys, values = next(windows).both()
            copied = KVBuffers(keys, values, keys.tokens)
            found.append(SlidingQuantizedKVCache.restored(cache.window, copied, at, cache.codec))
        else:
            assert isinstance(cache, StateCache)
            found.append(StateCache(next(states), at))
    return found


@pytest.mark.slow
def test_a_long_prompt_leaves_them_and_goes_on_right_from_each(
    model: LoadedModel, directory: Path, prompt: list[int]
) -> None:
    assert model.checkpoint_distance == STEP
    job, oracle = computed(model, prompt), Oracle(directory)
    assert list(job.captured) == [2048, 4096]
    assert len(job.chunks) == len({chunk.position for chunk in job.chunks})
    ends = {chunk.position + chunk.tokens for chunk in job.chunks}
    assert {2048, 4096} <= ends
    for at, checkpoint in job.captured.items():
        edited = [*prompt[:at], *reversed(prompt[at : at + 90])]
        events: list[TokenEvent] = []
        caches = resumed(job.caches, checkpoint)
        decoding = Decoding(12, sampling=Sampling(ignore_eos=True), top_logprobs=0)
        finish(model, TurnJob(edited, lambda of=caches: of, decoding, events.append, threading.Event()))  # type: ignore[misc]
        assert len({event.token_id for event in events}) > 5, "an output that does not vary proves nothing"
        wanted = oracle.logprobs_of([*edited, *(event.token_id for event in events)], len(edited))
        assert np.abs(wanted - np.array([event.logprob for event in events])).max() < 1e-3


@pytest.mark.slow
def test_a_turn_that_goes_on_leaves_those_behind_where_it_began(model: LoadedModel, prompt: list[int]) -> None:
    first = computed(model, prompt[:3000])
    assert list(first.captured) == [2048]
    assert list(computed(model, prompt, warm=first.caches).captured) == [4096]
