"""Arithmetic tells whether a model fits, and its size before it is downloaded."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from agentmem.errors import FailedPrecondition
from inference_service.engine.device import on_cpu
from inference_service.models import fitting
from inference_service.models.finding import ATTENTION
from inference_service.models.fitting import KVLimits, MemoryLimits, fit
from inference_service.models.opening import ModelShape, shape_of
from inference_service.models.sources import _element_bytes, registry

CONFIG = json.loads((Path(registry([])["demo"].source) / "config.json").read_text())
GB = 10**9


def shape(**element_bytes: int) -> ModelShape:
    return shape_of("m", CONFIG, element_bytes or {"U32": GB, "F16": GB}, ATTENTION)


def test_what_is_packed_keeps_its_size_and_floats_take_that_of_the_computation() -> None:
    found = shape()
    bases = found.geometry.basis_bytes
    assert bases == 6 * 2 * 4 * 64 * 64 * found.geometry.dtype.size, "of each head, two matrices of K and of V"
    assert found.weight_bytes == bases + GB + (2 if on_cpu() else 1) * GB
    assert shape(**{"": GB}).weight_bytes == bases + GB, "of a dtype that is not known"
    assert shape(F32=GB).weight_bytes == bases + (GB if on_cpu() else GB // 2)
    assert (found.geometry.full.kv_heads, found.geometry.full.k_dim, len(found.geometry.full.layers)) == (2, 64, 6)
    assert found.own_context_length == 8192


def test_more_memory_is_more_agents_and_less_is_a_refusal() -> None:
    model = shape()
    left = (GB // 8, GB // 4, GB // 2)
    agents = [fit(model, MemoryLimits(model.weight_bytes + free), KVLimits()).agents for free in left]
    assert 0 < agents[0] < agents[1] < agents[2]
    assert "does not fit: its weights take" in fit(model, MemoryLimits(GB), KVLimits()).refusal
    barely = fit(model, MemoryLimits(model.weight_bytes + GB // 200), KVLimits()).refusal
    assert "does not fit" in barely and "smaller or quantized model" in barely
    assert not fit(model, MemoryLimits(model.weight_bytes + GB), KVLimits()).refusal
    busy = MemoryLimits(100 * GB, 1, GB)
    assert "as long as other processes have the rest" in fit(model, busy, KVLimits()).refusal


def test_the_settings_of_the_pool_are_taken() -> None:
    model, limits = shape(), MemoryLimits(100 * GB)
    found = fit(model, limits, KVLimits(pool_bytes=GB // 10))
    assert found.pool_bytes <= GB // 10
    assert found.agents < fit(model, limits, KVLimits()).agents
    assert fit(replace(model, own_context_length=1000), limits, KVLimits()).tokens == 1000
    assert fit(model, limits, KVLimits(context_length=1000)).context_length == 1000
    assert "does not fit" in fit(model, limits, KVLimits(pool_bytes=200 * GB)).refusal


@pytest.mark.parametrize("own_memory", [True, False], ids=["device", "host"])
def test_memory_for_arrays_is_planned_where_attention_takes_them(
    monkeypatch: pytest.MonkeyPatch, own_memory: bool
) -> None:
    """A GPU attends over the pool's blocks, and the pool gets all that is left."""
    monkeypatch.setattr(fitting, "on_cuda", lambda: own_memory)
    model = shape()
    found = fit(model, MemoryLimits(model.weight_bytes + GB // 4), KVLimits())
    left = GB // 4 - found.needs.activation_bytes
    assert found.batch_bytes == (0 if own_memory else left - left // 2)
    block = 256 * model.geometry.bytes_per_token
    assert left // (1 if own_memory else 2) - block < found.pool_bytes <= left // (1 if own_memory else 2)


def test_what_cannot_run_is_refused_by_its_config() -> None:
    with pytest.raises(FailedPrecondition, match="'m' cannot be set up from its config"):
        shape_of("m", {"model_type": "of-nobody"}, {}, ATTENTION)
    with pytest.raises(FailedPrecondition, match="does not say how long the context is"):
        shape_of("m", {**CONFIG, "max_position_embeddings": None}, {}, ATTENTION)
    with pytest.raises(FailedPrecondition, match="does not say how long the context is"):
        shape_of("m", {**CONFIG, "max_position_embeddings": 0}, {}, ATTENTION)


@pytest.mark.parametrize(
    ("counts", "file_bytes", "expected"),
    [
        ({"U32": 250, "BF16": 100}, 1201, {"U32": 1000, "BF16": 200}),
        ({"U32": 2000, "BF16": 100}, 1200, {"": 1200}),  # counted as they were before they were packed
        ({"F7": 10}, 100, {"": 100}),
        ({}, 7, {"": 7}),
    ],
)
def test_a_hubs_counts_are_believed_where_they_add_up(
    counts: Mapping[str, int], file_bytes: int, expected: Mapping[str, int]
) -> None:
    assert _element_bytes(counts, file_bytes) == expected
