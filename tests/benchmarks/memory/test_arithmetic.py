"""The arithmetic of KV, against numbers worked out by hand from the published configurations, and its own rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.geometries import GEOMETRIES
from benchmarks.memory.arithmetic import (
    Layers,
    fp16_agent,
    fp16_token,
    fp16_uncapped_agent,
    latent_fp16_agent,
    q4_agent,
    q4_disk,
    q4_pool,
    q4_token,
)
from benchmarks.memory.command import MODELS

ALL = {name: Layers.of(GEOMETRIES[name]) for name in MODELS}


@pytest.mark.parametrize(
    ("name", "fp16", "q4"),
    [
        ("llama-3.1-8b", 128 * 1024, 36 * 1024),
        ("qwen-2.5-14b", 192 * 1024, 54 * 1024),
        ("gemma-3-12b", 64 * 1024, 18 * 1024),
        ("gpt-oss-20b", 24 * 1024, 6912),
        ("deepseek-v2-lite", 27 * 16 * 320 * 2, 8_748),
    ],
)
def test_bytes_of_a_token(name: str, fp16: int, q4: int) -> None:
    assert (fp16_token(ALL[name]), q4_token(ALL[name], 2)) == (fp16, q4)


def test_sliding_layers_stop_growing() -> None:
    gemma = ALL["gemma-3-12b"]
    assert (gemma.full, gemma.sliding, gemma.window) == (8, 40, 1024)
    assert fp16_agent(gemma, 16384) - fp16_agent(gemma, 8192) == 8192 * fp16_token(gemma)
    assert q4_agent(gemma, 16384, 2) - q4_agent(gemma, 8192, 2) == 8192 * q4_token(gemma, 2)
    assert fp16_agent(gemma, 16384) == pytest.approx(1.31 * 2**30, rel=0.01)
    assert q4_agent(gemma, 16384, 2) < 0.4 * 2**30
    assert q4_disk(gemma, 16384, 2) > q4_agent(gemma, 16384, 2)


def test_the_papers_three_agents() -> None:
    assert int(10.2e9) // fp16_uncapped_agent(ALL["gemma-3-12b"], 8192) == 3


def test_only_latent_attention_has_a_latent() -> None:
    assert [name for name, layers in ALL.items() if latent_fp16_agent(layers, 256)] == ["deepseek-v2-lite"]


@given(
    name=st.sampled_from(sorted(ALL)),
    budget=st.integers(10**8, 10**11),
    tokens=st.integers(1, 40_000),
    scale_bytes=st.sampled_from([2, 4]),
)
def test_a_pool_keeps_to_its_budget(name: str, budget: int, tokens: int, scale_bytes: int) -> None:
    layers = ALL[name]
    pool = q4_pool(layers, budget, tokens, scale_bytes)
    assert pool.bytes <= budget
    assert q4_pool(layers, 2 * budget, tokens, scale_bytes).agents >= 2 * pool.agents
    if tokens >= layers.window + 256:
        assert pool.agents <= budget // q4_agent(layers, tokens, scale_bytes)


def test_an_unknown_kind_of_model_is_refused() -> None:
    config: dict[str, Any] = {"model_type": "mamba", "num_hidden_layers": 1, "head_dim": 1, "num_key_value_heads": 1}
    with pytest.raises(ValueError, match="published config"):
        Layers.of(config)
