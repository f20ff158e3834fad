"""Batched equals alone, for every architecture, in mlx-lm's own GenerationBatch; and faults that must be found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import GenerationBatch, StopSequences

from inference_service.engine.caches import BatchQuantizedKVCache, BatchSlidingQuantizedKVCache, KVBuffers
from inference_service.engine.fingerprint import ContentHashes
from inference_service.engine.geometry import Caches
from inference_service.engine.loading import LoadedModel, load
from tests.oracle import Oracle
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama, write_qwen2, write_qwen3

TOLERANCE = 1e-3
WRITERS = [write_llama, write_qwen2, write_qwen3, write_gemma3, write_gpt_oss, write_deepseek2]
TEXT = "The boat by the sea, ü€😀 nobody knows. "
REPEATS, LENGTHS = (1, 9, 16, 3), (24, 10, 14, 30)


@pytest.fixture(scope="module", params=WRITERS, ids=[w.__name__.removeprefix("write_") for w in WRITERS])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Oracle:
    return Oracle(directory)


@pytest.fixture(scope="module")
def model(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load("tiny", str(directory), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json"))


def prefilled(model: LoadedModel, prompt: list[int]) -> Caches:
    caches = model.new_caches()
    model.engine._model(mx.array([prompt[:-1]]), cache=caches)
    mx.eval([cache.state for cache in caches])
    return caches


def greedy(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


def run(
    model: LoadedModel, joins: dict[int, int], fault: Callable[[list[Any]], None] | None = None
) -> tuple[int, dict[int, tuple[Caches, list[int]]], Callable[[Oracle], float]]:
    """Four sequences that join at given steps; the extracted caches, and the largest difference to an oracle."""
    prompts = [
        model.tokenizer.encode(f"{i} " + TEXT * repeats, parse_special=False) for i, repeats in enumerate(REPEATS)
    ]
    batch: GenerationBatch | None = None
    tokens: dict[int, list[int]] = {i: [] for i in range(4)}
    logprobs: dict[int, list[float]] = {i: [] for i in range(4)}
    left: dict[int, tuple[Caches, list[int]]] = {}
    step = 0
    while len(left) < 4:
        for uid in (uid for uid, at in joins.items() if at == step):
            caches = [type(cache).merge([cache]) for cache in prefilled(model, prompts[uid])]
            joining = GenerationBatch(
                model.engine._model, [uid], mx.array([prompts[uid][-1]]), caches, [prompts[uid][:-1]],
                [greedy], greedy, [[]], [StopSequences([])], [LENGTHS[uid]],
            )  # fmt: skip
            if batch is None or not len(batch):
                batch = joining
            else:
                batch.extend(joining)
        assert batch is not None
        if fault is not None and len(batch) > 1 and step % 5 == 4:
            fault(batch.prompt_cache)
        for response in batch.next():
            tokens[response.uid].append(response.token)
            logprobs[response.uid].append(float(response.logprobs[response.token]))
            if response.finish_reason:
                left[response.uid] = response.prompt_cache, response.all_tokens
        step += 1

    def difference(oracle: Oracle) -> float:
        worst = 0.0
        for uid, prompt in enumerate(prompts):
            wanted = oracle.logprobs_of([*prompt, *tokens[uid]], len(prompt))
            worst = max(worst, float(np.abs(wanted - np.array(logprobs[uid])).max()))
        return worst

    return len({t for each in tokens.values() for t in each}), left, difference


@pytest.mark.parametrize("joins", [{0: 0, 1: 3, 2: 5, 3: 9}, {2: 0, 3: 2, 0: 13, 1: 16}])
def test_batched_equals_alone(model: LoadedModel, oracle: Oracle, joins: dict[int, int]) -> None:
    variety, left, difference = run(model, joins)
    assert variety > 15, "an output that does not vary proves nothing"
    assert difference(oracle) < TOLERANCE
    for caches, sequence in left.values():
        assert {int(cache.offset) for cache in caches} == {len(sequence)}
        more = model.tokenizer.encode(" and more 😀 text", parse_special=False)
        logits = model.engine._model(mx.array([more]), cache=caches)[0]
        found = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        wanted = oracle.logprobs([*sequence, *more])[len(sequence) :]
        assert np.abs(found - wanted).max() < TOLERANCE, "what was extracted goes on as if it had been alone"


def one_position_off(caches: list[Any]) -> None:
    """RoPE: every row believes to be one token further, by one token of padding less."""
    for cache in caches:
        if isinstance(cache, BatchSlidingQuantizedKVCache):
            cache.offsets = [offset + 1 for offset in cache.offsets]
        else:
            cache.buffers = cache.buffers.padded(1)


def no_padding_mask(caches: list[Any]) -> None:
    for cache in caches:
        if isinstance(cache, BatchQuantizedKVCache):
            cache.make_mask = lambda *_, **__: None


def swapped_rows(caches: list[Any]) -> None:
    for cache in caches:
        rows = list(range(len(cache.padding)))
        cache.buffers = cache.buffers.rows([rows[-1], *rows[1:-1], rows[0]])


def stale(caches: list[Any]) -> None:
    """The newest tokens of every layer are those of some steps before."""
    for cache in caches:
        filled = cache.buffers.filled
        old = cache.buffers.map(lambda part, end=filled: part.between(end - 16, end - 8), 8)
        cache.buffers.filled -= 8
        cache.buffers.append(*KVBuffers(old.keys, old.values, 8).both())


@pytest.mark.parametrize("fault", [one_position_off, no_padding_mask, swapped_rows, stale])
def test_injected_faults_are_found(model: LoadedModel, oracle: Oracle, fault: Callable[[list[Any]], None]) -> None:
    _, _, difference = run(model, {0: 0, 1: 0, 2: 0, 3: 2}, fault)
    assert difference(oracle) > 10 * TOLERANCE
