"""The models that are run most, at usual sizes of memory: each has a context that fits, or is refused."""

import pytest

from inference_service.engine.attention import AttentionBackend
from inference_service.models import costs, opening
from inference_service.models.fitting import LEAST_CONTEXT, Fit, KVLimits, MemoryLimits, agent_bytes, fit
from inference_service.models.opening import ModelShape, shape_of
from inference_service.pool.memory import TYPICAL_TOKENS, agents_that_fit, sizes
from tests.inference_service.models.popular_models import POPULAR, element_bytes

GB = 1 << 30
MEMORY = (8, 16, 24, 64)


def usable(gigabytes: int, backend: str) -> int:
    """Return the memory for models by arithmetic: half of the system's, or nine tenths of a Mac's working set."""
    working_set = gigabytes * GB * (2 / 3 if gigabytes <= 32 else 3 / 4)
    return gigabytes * GB // 2 if backend == "cpu" else int(0.9 * working_set)


def shape(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> ModelShape:
    for module in (opening, costs):
        monkeypatch.setattr(module, "on_cpu", lambda: backend == "cpu")
    config, parameters = POPULAR[name]
    return shape_of(name, config | {"torch_dtype": "bfloat16"}, element_bytes(parameters), AttentionBackend())


def check(model: ModelShape, found: Fit, limit: int) -> None:
    """One agent can come to the end of the context, in memory that is there."""
    context, free = found.context_length, limit - found.needs.fixed_bytes
    memory = sizes(free, model.geometry, context)
    assert memory.pool_bytes(model.geometry) + memory.batch_bytes <= free
    assert agents_that_fit(memory.space, model.geometry, context) >= 1
    assert model.cost.least(context) <= found.needs.activation_bytes
    longest = context == model.own_context_length
    assert longest or (context >= LEAST_CONTEXT and not context % 256)


@pytest.mark.parametrize("backend", ["cpu", "metal"])
@pytest.mark.parametrize("name", POPULAR)
def test_a_model_has_a_context_that_fits_or_is_refused(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shape(name, backend, monkeypatch)
    before = 0
    for gigabytes in MEMORY:
        limit = usable(gigabytes, backend)
        found = fit(model, MemoryLimits(limit), KVLimits())
        if found.refusal:
            assert before == 0, "more memory refuses nothing"
            tokens = LEAST_CONTEXT if model.geometry.resumes_anywhere else TYPICAL_TOKENS  # by which pools are split
            least = agent_bytes(model.geometry, tokens)
            assert model.weight_bytes + model.cost.least(LEAST_CONTEXT) + 2 * least > limit, found.refusal
            continue
        check(model, found, limit)
        assert found.context_length >= before
        before = found.context_length
        assert f"context {found.context_length:,}" in found.context
        asked = fit(model, MemoryLimits(limit), KVLimits(context_length=model.own_context_length))
        assert not asked.refusal or f"set --context-length to {found.context_length} or less" in asked.refusal


@pytest.mark.parametrize(
    ("name", "gigabytes", "context"),
    [("Llama-3.2-3B", 24, 49_152), ("Llama-3.2-3B", 16, 16_384), ("Qwen2.5-0.5B", 16, 32_768), ("Qwen3-4B", 16, 8192)],
)
def test_small_models_have_long_contexts_on_a_cpu(
    name: str, gigabytes: int, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fit(shape(name, "cpu", monkeypatch), MemoryLimits(usable(gigabytes, "cpu")), KVLimits())
    assert not found.refusal and found.context_length >= context, found.context
