"""Turns of any architecture whose rows join and leave passes at given ticks."""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import pytest

from inference_service.engine.paged.passes import Pass
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import Turn, begin, difference, prompt_of
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


Rows = dict[int, Turn]


def decoded(model: LoadedModel, joins: dict[int, int]) -> Rows:
    """Turns that join at given ticks, none of which fails."""
    rows: Rows = {}
    for tick in range(10_000):
        for number in (number for number, at in joins.items() if at == tick):
            rows[number] = begin(model, prompt_of(model, number, REPEATS[number]), LENGTHS[number])
        if not model.engine.step() and len(rows) == len(joins):
            assert all(row.whole and not row.job.alone for row in rows.values())
            return rows
    raise AssertionError("the engine does not come to an end")


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
