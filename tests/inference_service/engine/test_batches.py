"""Batched equals alone, for every architecture, in mlx-lm's own GenerationBatch; and faults that must be found."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from inference_service.engine.caches import BatchQuantizedKVCache, BatchSlidingQuantizedKVCache, KVBuffers
from inference_service.engine.caches.states import BatchStateCache, StateCache
from mlx_lm.generate import GenerationBatch, StopSequences

from benchmarks.loading import load
from inference_service.engine.geometry import Caches
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.oracle import Oracle
from tests.tiny_hybrids import HYBRIDS, WITHOUT_POSITIONS
from tests.tiny_models import (
    write_deepseek2,
    write_gemma3,
    write_gpt_oss,
    write_llama,
    write_llama_80,
    write_phi,
    write_qwen2,
    write_qwen3,
)
from tests.tiny_own_attention import OWN_ATTENTION
from tests.tiny_states import STATES

pytestmark = pytest.mark.sampled(4)

TOLERANCE = 1e-3
FLIPPED_CODES = 0.005
KL_ALONE, KL_ONE_PASS = 1e-3, 0.07
SLIDING = [write_gemma3, write_gpt_oss]
OTHERS = [write_llama, write_llama_80, write_qwen2, write_qwen3, write_phi, write_deepseek2]
WRITERS = [*OTHERS, *SLIDING, *HYBRIDS, *OWN_ATTENTION, *STATES]
WITH_KV = [writer for writer in WRITERS if writer not in STATES]
RECURRENT = [*HYBRIDS, *STATES]
POSITIONED = [writer for writer in WITH_KV if writer not in WITHOUT_POSITIONS]
BFLOAT16 = [write_llama, write_qwen2, write_qwen3, write_gemma3]  # MLX computes no experts in bfloat16 on CPU.
TEXT = "The boat by the sea, ü€😀 nobody knows. "
REPEATS, LENGTHS = (1, 9, 16, 3), (24, 10, 14, 30)
ORDERS = {
    "late joins": {0: 0, 1: 3, 2: 5, 3: 9},
    "longest leaves first": {2: 0, 3: 2, 0: 13, 1: 16},
    "one row": {1: 0},
}
FAULTY = {0: 0, 1: 0, 2: 0, 3: 2}


def names(writers: Sequence[Callable[[Path], Path]]) -> list[str]:
    return [writer.__name__.removeprefix("write_") for writer in writers]


@pytest.fixture(scope="module", params=WRITERS, ids=names(WRITERS))
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@dataclass
class Row:
    """A sequence that was decoded: each token's distribution, and at the end the caches and the tokens in them."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[npt.NDArray[np.float32]] = field(default_factory=list)
    caches: Caches = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)


Rows = dict[int, Row]
Hook = Callable[[int, GenerationBatch], None]


_prefilled: dict[tuple[str, tuple[int, ...]], Caches] = {}


def prefilled(model: LoadedModel, prompt: list[int]) -> Caches:
    """All of the prompt but its last token; computed once."""
    key = model.fingerprint, tuple(prompt)
    if key not in _prefilled:
        _prefilled[key] = model.new_caches()
        model.engine.model(mx.array([prompt[:-1]]), cache=_prefilled[key])
        mx.eval([cache.state for cache in _prefilled[key]])
    return copy.deepcopy(_prefilled[key])


def greedy(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


def decoded(model: LoadedModel, joins: dict[int, int], before_step: Hook = lambda *_: None) -> Rows:
    """Sequences that join at given steps, in the order in which they left."""
    rows = {
        uid: Row(model.tokenizer.encode(f"{uid} " + TEXT * REPEATS[uid], parse_special=False)) for uid in sorted(joins)
    }
    batch: GenerationBatch | None = None
    left: Rows = {}
    step = 0
    while len(left) < len(rows):
        for uid in (uid for uid, at in joins.items() if at == step):
            prompt = rows[uid].prompt
            caches = [type(cache).merge([cache]) for cache in prefilled(model, prompt)]
            joining = GenerationBatch(
                model.engine.model, [uid], mx.array([prompt[-1]]), caches, [prompt[:-1]],
                [greedy], greedy, [[]], [StopSequences([])], [LENGTHS[uid]],
            )  # fmt: skip
            if batch is None or not len(batch):
                batch = joining
            else:
                batch.extend(joining)
        assert batch is not None
        before_step(step, batch)
        for response in batch.next():
            row = rows[response.uid]
            row.tokens.append(response.token)
            row.logprobs.append(np.array(response.logprobs.astype(mx.float32)))
            if response.finish_reason:
                row.caches, row.sequence = response.prompt_cache, response.all_tokens
                left[response.uid] = row
        step += 1
    return left


def differences(oracle: Oracle, rows: Rows) -> Iterator[float]:
    """Each row's largest, of its tokens' log-probabilities; short rows first."""
    for row in sorted(rows.values(), key=lambda row: len(row.prompt)):
        wanted = oracle.logprobs_of([*row.prompt, *row.tokens], len(row.prompt))
        found = [float(logprobs[token]) for logprobs, token in zip(row.logprobs, row.tokens, strict=True)]
        yield float(np.abs(wanted - np.array(found)).max())


def goes_on(model: LoadedModel, oracle: Oracle, caches: Caches, sequence: list[int]) -> bool:
    """Whether what follows is as if the caches had been alone."""
    more = model.tokenizer.encode(" and more 😀 text", parse_special=False)
    logits = model.engine.model(mx.array([more]), cache=copy.deepcopy(caches))[0]
    found = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    wanted = oracle.logprobs([*sequence, *more])[len(sequence) :]
    return bool(np.abs(found - wanted).max() < TOLERANCE)


def alone(model: LoadedModel, row: Row) -> tuple[Caches, list[npt.NDArray[np.float32]]]:
    """The row's caches, and its distributions, had it been decoded by itself, in no batch at all."""
    caches, logprobs = prefilled(model, row.prompt), []
    for token in row.sequence[len(row.prompt) - 1 :]:
        logits = model.engine.model(mx.array([[token]]), cache=caches)[0, -1]
        logprobs.append(np.array((logits - mx.logsumexp(logits)).astype(mx.float32)))
    return caches, logprobs[: len(row.tokens)]


def flipped(found: Caches, wanted: Caches) -> tuple[float, int]:
    """The share of 4-bit codes that differ, of the tokens that both hold, and by how much at most."""
    steps = []
    for one, other in zip(with_kv(found), with_kv(wanted), strict=True):
        tokens = min(one.buffers.filled, other.buffers.filled)
        for a, b in zip(one.buffers.last(tokens).both(), other.buffers.last(tokens).both(), strict=True):
            steps.append(np.abs(codes(a.weights) - codes(b.weights)).ravel())
    counted = np.concatenate(steps)
    return float((counted > 0).mean()), int(counted.max())


def drift(found: Caches, wanted: Caches) -> float:
    """How far apart the recurrent states are, relative to their own size; 0 without such layers."""
    pairs = [
        (np.array(a), np.array(b))
        for one, other in zip(found, wanted, strict=True)
        if isinstance(one, StateCache) and isinstance(other, StateCache)
        for a, b in zip(one.arrays, other.arrays, strict=True)
    ]
    return max((float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs), default=0.0)


def codes(weights: mx.array) -> npt.NDArray[np.int64]:
    return (np.array(weights).astype(np.int64)[..., None] >> np.arange(0, 32, 4)) & 15


@pytest.fixture(scope="module", params=ORDERS.values(), ids=ORDERS)
def rows(request: pytest.FixtureRequest, model: LoadedModel) -> Rows:
    rows = decoded(model, request.param)
    assert request.param != ORDERS["longest leaves first"] or next(iter(rows)) == 2
    return rows


@pytest.mark.slow(
    "kimi_linear-late joins", "qwen3_next-late joins", "falcon_h1-late joins", "recurrent_gemma-longest leaves first"
)
def test_batched_equals_alone(model: LoadedModel, oracle: Oracle, rows: Rows) -> None:
    variety = len({token for row in rows.values() for token in row.tokens})
    assert variety > (15 if len(rows) > 1 else 5), "an output that does not vary proves nothing"
    assert max(differences(oracle, rows)) < TOLERANCE
    for row in rows.values():
        assert {int(cache.offset) for cache in row.caches} == {len(row.sequence)}
        assert goes_on(model, oracle, row.caches, row.sequence)


@pytest.mark.slow("late joins-gemma3", "late joins-gpt_oss")
@pytest.mark.parametrize("directory", WITH_KV, ids=names(WITH_KV), indirect=True)
def test_packed_kv_equals_that_of_rows_alone(model: LoadedModel, rows: Rows) -> None:
    """But for codes that rounding flips, each to its neighbour; none on Linux's CPU, which computes row by row."""
    by_itself = {uid: alone(model, row)[0] for uid, row in rows.items()}
    for uid, row in rows.items():
        share, step = flipped(row.caches, by_itself[uid])
        assert share < FLIPPED_CODES
        assert step <= 1
        assert drift(row.caches, by_itself[uid]) < TOLERANCE
    for uid, other in zip(rows, list(rows)[1:], strict=False):
        assert flipped(rows[uid].caches, by_itself[other])[0] > 100 * FLIPPED_CODES, "other rows differ"


def test_a_row_that_is_extracted_in_mid_flight_goes_on_twice(model: LoadedModel, oracle: Oracle) -> None:
    """In the batch, and by itself."""
    taken: list[tuple[Caches, list[int]]] = []

    def extract(step: int, batch: GenerationBatch) -> None:
        if step == 7:
            taken.extend((batch.extract_cache(row), list(batch.tokens[row])) for row in range(len(batch)))

    rows = decoded(model, {0: 0, 1: 2, 3: 4}, extract)
    assert max(differences(oracle, rows)) < TOLERANCE
    assert len(taken) == 3
    for caches, sequence in taken:
        assert {int(cache.offset) for cache in caches} == {len(sequence)}
        assert goes_on(model, oracle, caches, sequence)
    assert all(goes_on(model, oracle, row.caches, row.sequence) for row in rows.values())


def kl(wanted: list[npt.NDArray[np.float32]], found: list[npt.NDArray[np.float32]]) -> float:
    """Mean over the tokens of KL(wanted || found), in nats."""
    pairs = zip(wanted, found, strict=True)
    return float(np.mean([(np.exp(one) * (one - other)).sum() for one, other in pairs]))


@pytest.mark.slow
@pytest.mark.parametrize("directory", BFLOAT16, ids=names(BFLOAT16), indirect=True)
def test_bfloat16_is_as_good_as_alone(directory: Path, tmp_path: Path) -> None:
    """The KL divergence per token, in nats, is bounded: from a row alone, and from one pass over the whole sequence.

    Measured on Linux's CPU: 0 from a row alone, since it computes row by row; from one pass 0 but for Gemma 3, where it
    is 0.023, because decoding rounds otherwise than prefill and codes flip. The bound is three times that. With two
    rows swapped it is 0.9 and more.
    """
    model = load("tiny", str(directory), dtype="bfloat16", hashes=ContentHashes(tmp_path / "weights.json"))
    for row in decoded(model, {0: 0, 3: 2}).values():
        assert kl(alone(model, row)[1], row.logprobs) < KL_ALONE
        logits = model.engine.model(mx.array([[*row.prompt, *row.tokens]]), cache=model.new_caches())[0]
        once = np.array((logits - mx.logsumexp(logits, axis=-1, keepdims=True)).astype(mx.float32))
        assert kl(list(once[len(row.prompt) - 1 : -1]), row.logprobs) < KL_ONE_PASS
    worst = max(kl(alone(model, row)[1], row.logprobs) for row in faulty(model, swapped_rows, {0: 0, 3: 2}).values())
    assert worst > 5 * KL_ONE_PASS


def with_kv(caches: Sequence[Any]) -> list[Any]:
    return [cache for cache in caches if not isinstance(cache, StateCache | BatchStateCache)]


def states(caches: list[Any]) -> list[BatchStateCache]:
    return [cache for cache in caches if isinstance(cache, BatchStateCache)]


def one_position_off(caches: list[Any]) -> None:
    """RoPE: every row believes to be one token further, by one token of padding less."""
    for cache in with_kv(caches):
        if isinstance(cache, BatchSlidingQuantizedKVCache):
            cache.offsets = [offset + 1 for offset in cache.offsets]
        else:
            filled = cache.buffers.filled + 1
            cache.buffers = cache.buffers.map(lambda part: part.blank(1).followed_by(part), filled)


def no_padding_mask(caches: list[Any]) -> None:
    for cache in caches:
        if isinstance(cache, BatchQuantizedKVCache):
            cache.make_mask = lambda *_, **__: None


def swapped_rows(caches: list[Any]) -> None:
    for cache in with_kv(caches):
        rows = list(range(len(cache.padding)))
        cache.buffers = cache.buffers.rows([rows[-1], *rows[1:-1], rows[0]])


def stale(caches: list[Any]) -> None:
    """The newest tokens of every layer are those of some steps before."""
    for cache in with_kv(caches):
        filled = cache.buffers.filled
        old = cache.buffers.map(lambda part, end=filled: part.between(end - 16, end - 8), 8)
        cache.buffers.filled -= 8
        cache.buffers.append(*KVBuffers(old.keys, old.values, 8).both())


def stale_window(caches: list[Any]) -> None:
    stale([cache for cache in caches if isinstance(cache, BatchSlidingQuantizedKVCache)])


def swapped_states(caches: list[Any]) -> None:
    """A row goes on from its neighbour's state."""
    for cache in states(caches):
        cache.cache = [array[::-1] for array in cache.arrays]


def short_convolutions(caches: list[Any]) -> None:
    """Of the tokens that a convolution sees, the first are gone."""
    for cache in states(caches):
        first, *others = cache.arrays
        cache.cache = [mx.concatenate([mx.zeros_like(first[:, :1]), first[:, 1:]], axis=1), *others]


def faulty(model: LoadedModel, fault: Callable[[list[Any]], None], joins: dict[int, int] = FAULTY) -> Rows:
    def inject(step: int, batch: GenerationBatch) -> None:
        if len(batch) > 1 and step % 5 == 4:
            fault(batch.prompt_cache)

    return decoded(model, joins, inject)


@pytest.mark.slow("kimi_linear")
@pytest.mark.parametrize("directory", POSITIONED, ids=names(POSITIONED), indirect=True)
def test_wrong_positions_are_found(model: LoadedModel, oracle: Oracle) -> None:
    assert any(found > 10 * TOLERANCE for found in differences(oracle, faulty(model, one_position_off)))


@pytest.mark.slow("qwen3_next-stale", "jamba-no_padding_mask")
@pytest.mark.parametrize("fault", [no_padding_mask, swapped_rows, stale])
@pytest.mark.parametrize("directory", WITH_KV, ids=names(WITH_KV), indirect=True)
def test_injected_faults_are_found(model: LoadedModel, oracle: Oracle, fault: Callable[[list[Any]], None]) -> None:
    assert any(found > 10 * TOLERANCE for found in differences(oracle, faulty(model, fault)))


@pytest.mark.parametrize("fault", [swapped_states, short_convolutions])
@pytest.mark.parametrize("directory", RECURRENT, ids=names(RECURRENT), indirect=True)
def test_a_state_of_another_is_found(model: LoadedModel, oracle: Oracle, fault: Callable[[list[Any]], None]) -> None:
    assert any(found > 10 * TOLERANCE for found in differences(oracle, faulty(model, fault)))


@pytest.mark.parametrize("directory", RECURRENT, ids=names(RECURRENT), indirect=True)
def test_a_state_of_a_token_before_is_found(model: LoadedModel, oracle: Oracle) -> None:
    before: dict[int, tuple[list[int], list[Any]]] = {}

    def inject(step: int, batch: GenerationBatch) -> None:
        for at, cache in enumerate(states(batch.prompt_cache)):
            uids, arrays = before.get(at, ([], []))
            before[at] = list(batch.uids), list(cache.cache)
            if step % 5 == 4 and uids == batch.uids:
                cache.cache = arrays

    assert any(found > 10 * TOLERANCE for found in differences(oracle, decoded(model, FAULTY, inject)))


@pytest.mark.parametrize("directory", SLIDING, ids=names(SLIDING), indirect=True)
def test_a_stale_window_is_found(model: LoadedModel, oracle: Oracle) -> None:
    assert any(found > 10 * TOLERANCE for found in differences(oracle, faulty(model, stale_window)))
