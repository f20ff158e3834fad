"""The other architectures of the recipe: what mlx-lm makes of their configurations, and of exported weights."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import _get_classes

from benchmarks.demo_model.configurations import CONFIGURATIONS, ENDS, QUICK

GROUP = 64
KINDS = {"gemma3_text": "wwfwwf", "gpt_oss": "wfwfwf"}


def built(architecture: str) -> Any:
    configuration = {"model_type": architecture, **CONFIGURATIONS[architecture], **ENDS}
    model, arguments = _get_classes(configuration)
    return model(arguments.from_dict(configuration))


@pytest.mark.parametrize("architecture", CONFIGURATIONS)
def test_mlx_lm_makes_the_geometry_that_is_meant(architecture: str) -> None:
    model: nn.Module = built(architecture)
    caches = make_prompt_cache(model)
    logits = model(mx.array([[5, 6, 7]]), cache=caches)
    assert logits.shape == (1, 3, CONFIGURATIONS[architecture]["vocab_size"])
    assert all(type(cache) in (KVCache, RotatingKVCache) for cache in caches)
    assert "".join("w" if type(cache) is RotatingKVCache else "f" for cache in caches) == KINDS.get(
        architecture, "ffffff"
    )
    widths = {(cache.keys.shape[-1], cache.values.shape[-1]) for cache in caches}
    assert widths == {(128, 64) if architecture == "deepseek_v2" else (64, 64)}
    assert all(width % GROUP == 0 for pair in widths for width in pair)


def test_the_quick_ones_leave_nothing_out() -> None:
    for architecture, configuration in CONFIGURATIONS.items():
        changed = {name for name in QUICK if name in configuration}
        assert {"hidden_size", "num_hidden_layers"} <= changed, architecture


@pytest.mark.parametrize("architecture", CONFIGURATIONS)
def test_exported_weights_compute_in_mlx_lm_what_they_were_trained_to(architecture: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is no dependency; with it `benchmarks.demo_model.agreement` is run")
    from benchmarks.demo_model.agreement import LIMIT, differences

    found = differences(architecture)
    assert found["spread of the logits"] > 1
    assert found["mlx-lm"] < LIMIT
    assert found["transformers"] < LIMIT
