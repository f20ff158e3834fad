"""Rows of a pass equal each alone, for every architecture."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.loading import load
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import names, written_by
from tests.inference_service.engine.batch_rows import (
    BFLOAT16,
    LENGTHS,
    REPEATS,
    TOLERANCE,
    WITH_KV,
    WRITERS,
    Fault,
    Rows,
    alone,
    decoded,
    differences,
    inject,
    swapped_rows,
)
from tests.inference_service.engine.batch_turns import (
    Packed,
    begin,
    codes,
    computed,
    difference,
    packed,
    prompt_of,
    run,
)
from tests.oracle import Oracle

pytestmark = pytest.mark.sampled(4)

FLIPPED_CODES = 0.005
KL_ALONE, KL_ONE_PASS = 1e-3, 0.07
ORDERS = {
    "late joins": {0: 0, 1: 3, 2: 5, 3: 9},
    "longest leaves first": {2: 0, 3: 2, 0: 13, 1: 16},
    "one row": {1: 0},
}


directory = written_by(WRITERS)


def flipped(found: Packed, wanted: Packed) -> tuple[float, int]:
    """The share of 4-bit codes that differ, of the last tokens that both have, and by how much at most."""
    steps = []
    for name in (name for name in wanted if name.endswith("weights")):
        tokens = min(found[name].shape[2], wanted[name].shape[2])
        one, other = (codes(each[name][:, :, each[name].shape[2] - tokens :]) for each in (found, wanted))
        steps.append(np.abs(one - other).ravel())
    counted = np.concatenate(steps)
    return float((counted > 0).mean()), int(counted.max())


def drift(found: Packed, wanted: Packed) -> float:
    """How far apart the recurrent states are, relative to their own size; 0 without such layers."""
    pairs = [(found[name], wanted[name]) for name in wanted if name.startswith("states")]
    return max((float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs), default=0.0)


@pytest.fixture(scope="module", params=list(ORDERS.values()), ids=list(ORDERS))
def rows(request: pytest.FixtureRequest, model: LoadedModel) -> Rows:
    return decoded(model, request.param)


@pytest.mark.slow(
    "kimi_linear-late joins", "qwen3_next-late joins", "falcon_h1-late joins", "recurrent_gemma-longest leaves first"
)
def test_batched_equals_alone(model: LoadedModel, oracle: Oracle, rows: Rows) -> None:
    variety = len({token for row in rows.values() for token in row.said})
    assert variety > (15 if len(rows) > 1 else 5), "an output that does not vary proves nothing"
    assert all(row.whole and not row.job.alone for row in rows.values())
    assert max(differences(oracle, rows)) < TOLERANCE
    for row in rows.values():
        more = [*row.job.sequence, *row.generated.token_ids, *prompt_of(model, 7, 1)[:12]]
        later = begin(model, more, 4, warm=row.kv)
        run(model)
        assert difference(oracle, later) < TOLERANCE and not later.job.alone


@pytest.mark.slow("late joins-gemma3", "late joins-gpt_oss")
@pytest.mark.parametrize("directory", WITH_KV, ids=names(WITH_KV), indirect=True)
def test_packed_kv_equals_that_of_rows_alone(model: LoadedModel, rows: Rows) -> None:
    """But for codes that rounding flips, each to its neighbour; none on Linux's CPU, which computes row by row."""
    by_itself = {number: packed(model, row.kv) for number, row in alone(model, rows).items()}
    for number, row in rows.items():
        share, step = flipped(packed(model, row.kv), by_itself[number])
        assert share < FLIPPED_CODES
        assert step <= 1
        assert drift(packed(model, row.kv), by_itself[number]) < TOLERANCE
    for number, other in zip(rows, list(rows)[1:], strict=False):
        found = packed(model, rows[number].kv)
        assert flipped(found, by_itself[other])[0] > 100 * FLIPPED_CODES, "other rows differ"


def kl(wanted: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    """Mean over the tokens of KL(wanted || found), in nats."""
    return float((np.exp(wanted) * (wanted - found)).sum(axis=-1).mean())


def distributions(model: LoadedModel, joins: dict[int, int], fault: Fault | None = None) -> dict[int, Any]:
    """Return each turn's tokens, and the distributions they were sampled from."""
    found: dict[int, list[Any]] = {}
    begun: Rows = {}
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            inject(model, patch, fault)
        for number in joins:
            begun[number] = turn = begin(model, prompt_of(model, number, REPEATS[number]), LENGTHS[number])
            sampled = turn.job.sampler._choose
            kept = found.setdefault(number, [])

            def choose(logprobs: mx.array, kept: list[Any] = kept, original: Any = sampled) -> mx.array:
                kept.append(np.array(logprobs[0].astype(mx.float32)))
                chosen: mx.array = original(logprobs)
                return chosen

            turn.job.sampler._choose = choose  # type: ignore[method-assign]
        run(model)
    return {number: (turn, np.stack(found[number][: LENGTHS[number]])) for number, turn in begun.items()}


@pytest.mark.slow
@pytest.mark.parametrize("directory", BFLOAT16, ids=names(BFLOAT16), indirect=True)
def test_bfloat16_is_as_good_as_alone(directory: Path, tmp_path: Path) -> None:
    """The KL divergence per token, in nats, is bounded: from a row alone, and from one chunk of the whole sequence.

    From one chunk it is not 0, because decoding rounds otherwise than prefill and codes flip. With two rows swapped it
    is much more.
    """
    model = load("tiny", str(directory), dtype="bfloat16", hashes=ContentHashes(tmp_path / "weights.json"))
    joins = {0: 0, 3: 0}
    together = distributions(model, joins)
    by_themselves = {number: distributions(model, {number: 0})[number] for number in joins}
    for number, (turn, found) in together.items():
        assert kl(by_themselves[number][1], found) < KL_ALONE
        sequence = model.arenas.sequence(*rooms(model))
        logits = computed(model.engine.model, model.arenas, (sequence, [*turn.job.sequence, *turn.said]))
        once = np.array((logits - mx.logsumexp(logits, axis=-1, keepdims=True)).astype(mx.float32))
        assert kl(once[len(turn.job.sequence) - 1 : -1], found) < KL_ONE_PASS
    worst = distributions(model, joins, swapped_rows)
    assert max(kl(by_themselves[n][1][:8], found[:8]) for n, (_, found) in worst.items()) > KL_ONE_PASS


def rooms(model: LoadedModel) -> tuple[list[int], list[int]]:
    pool = model.memory.pool
    return pool.full.allocate(4), pool.pieces.allocate(2 * pool.checkpoint_pieces)
