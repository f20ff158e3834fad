"""Turns of any architecture whose rows join and leave passes at given ticks."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from inference_service.domain import Sampling
from inference_service.engine.paged.passes import Pass
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import EXACT, Turn, begin, difference, differing, packed, prompt_of
from tests.oracle import Oracle
from tests.tiny_hybrids import HYBRIDS
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

TOLERANCE = 1e-3
WRITERS = [
    write_llama, write_llama_80, write_qwen2, write_qwen3, write_phi, write_deepseek2, write_gemma3, write_gpt_oss,
    *HYBRIDS, *OWN_ATTENTION, *STATES,
]  # fmt: skip
WITH_KV = [writer for writer in WRITERS if writer not in STATES]
BFLOAT16 = [write_llama, write_qwen2, write_qwen3, write_gemma3]  # MLX computes no experts in bfloat16 on CPU.
REPEATS, LENGTHS = (2, 9, 15, 5), (30, 14, 18, 36)
AT_ONCE = dict.fromkeys(range(4), 0)


def write_narrow_gemma3(directory: Path) -> Path:
    return write_gemma3(directory, window=16)


Rows = dict[int, Turn]


def decoded(model: LoadedModel, joins: dict[int, int] = AT_ONCE, sampling: Sampling = EXACT, **options: Any) -> Rows:
    """Turns that join at given ticks."""
    rows: Rows = {}
    for tick in range(10_000):
        for number in (number for number, at in joins.items() if at == tick):
            prompt = prompt_of(model, number, REPEATS[number])
            rows[number] = begin(model, prompt, LENGTHS[number], sampling, **options)
        if not model.engine.step() and len(rows) == len(joins):
            return rows
    raise AssertionError("the engine does not come to an end")


def alone(model: LoadedModel, numbers: Iterable[int] = AT_ONCE, sampling: Sampling = EXACT) -> Rows:
    """Each by itself, in the order of their numbers."""
    found: Rows = {}
    for number in sorted(numbers):
        found |= decoded(model, {number: 0}, sampling)
    return found


def same(model: LoadedModel, rows: Rows, others: Rows) -> bool:
    """Return whether they said the same, and leave the same bits."""
    return all(
        (one := rows[number]).said == other.said
        and one.whole
        and differing(packed(model, one.kv), packed(model, other.kv)) == 0
        for number, other in others.items()
    )


def differences(oracle: Oracle, rows: Rows) -> Iterator[float]:
    """Each row's largest, of its tokens' log-probabilities; short rows first."""
    for row in sorted(rows.values(), key=lambda row: len(row.job.sequence)):
        yield difference(oracle, row)


Fault = Callable[[Pass], None]


def inject(model: LoadedModel, patch: pytest.MonkeyPatch, fault: Fault) -> list[Pass]:
    """Before each fifth pass of several rows; those that have it."""
    compute, passes, faulted = model.arenas.compute, [0], list[Pass]()

    def faulty(network: Any, of: Pass, tokens: mx.array) -> Any:
        if len(of.pieces) > 1:
            passes[0] += 1
            if passes[0] % 5 == 4:
                fault(of)
                faulted.append(of)
        return compute(network, of, tokens)

    patch.setattr(model.arenas, "compute", faulty)
    return faulted


def swapped_rows(of: Pass) -> None:
    """The first and the last go on from each other's K and V."""
    one, other = of.pieces[0].sequence, of.pieces[-1].sequence
    one.working, other.working = other.working, one.working
