"""Refusals explain errors of a model's code, and layers that cannot run over quantized KV."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import mlx.nn as nn
import pytest
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache

from agentmem.errors import FailedPrecondition, Unavailable
from inference_service.engine.attention import AttentionBackend
from inference_service.models.capability import QuantizationSettings, judged, refusing

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "vocab_size": 64,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
}
PLAMO3: dict[str, Any] = {"window_size": 64, "sliding_window_pattern": 2}


def refusal(model_type: str, **more: Any) -> str:
    """Return the refusal of such a tiny network."""
    module = import_module(f"mlx_lm.models.{model_type}")
    network = module.Model(module.ModelArgs.from_dict({"model_type": model_type, **SIZES, **more}))
    seam = AttentionBackend()
    seam.install(network)
    with pytest.raises(FailedPrecondition) as caught:
        judged("m", network, seam, QuantizationSettings())
    return caught.value.message


@pytest.mark.parametrize(
    ("model_type", "more", "said"),
    [
        (
            "plamo3",
            PLAMO3,
            "layer 0 (Plamo3DecoderLayer) reads its cache in a way of its own (the layer's window is 64",
        ),
    ],
)
def test_a_refusal_names_the_layers_and_what_to_do(model_type: str, more: dict[str, Any], said: str) -> None:
    message = refusal(model_type, **more)
    assert said in message and "take a model of full" in message
    assert not any(word in message for word in ("Error", "attribute", "NoneType", "Quantized"))


def test_layers_with_a_window_that_ask_for_a_cache_of_all_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their model's code is wrong, whoever writes it: what it needs is said, in place of an answer that is wrong."""
    monkeypatch.setattr(llama.Model, "make_cache", lambda model: [KVCache() for _ in model.layers])
    message = refusal("llama", sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2)
    assert "a window of 16 tokens" in message and "has to give such layers a RotatingKVCache" in message


class _Other(nn.Module):
    def make_cache(self) -> list[Any]:
        return []


def test_a_network_without_memory_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="no layers that keep anything"):
        judged("m", _Other(), AttentionBackend(), QuantizationSettings())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(1), r"its code ends the process \(1\)"),
        (KeyError("rope"), "KeyError: 'rope'"),
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (RuntimeError("a\n  b"), "RuntimeError: a b"),
        (OSError("no such file"), ": no such file"),
        (AssertionError(), ": AssertionError"),
        (RecursionError("too deep"), "RecursionError"),
    ],
)
def test_whatever_a_models_code_raises_is_a_refusal(error: BaseException, said: str) -> None:
    with pytest.raises(FailedPrecondition, match=f"^model m{said}|^model m: {said}"), refusing("model m"):
        raise error


@pytest.mark.parametrize("error", [Unavailable("later"), KeyboardInterrupt()])
def test_our_own_errors_and_the_users_interrupt_pass(error: BaseException) -> None:
    with pytest.raises(type(error)), refusing("model m"):
        raise error
