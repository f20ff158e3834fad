"""Small random models without full attention, as in `tiny_models`: a checkpoint is all their memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models import mamba2, recurrent_gemma, rwkv7

from tests.tiny_models import change_weights, write_tiny


def write_mamba2(directory: Path, seed: int = 0) -> Path:
    extra: dict[str, Any] = {
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 1,
        "state_size": 8,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": 4,
    }
    return write_tiny(directory, mamba2, extra, seed)


def write_rwkv7(directory: Path, seed: int = 0) -> Path:
    ranks = {f"{name}_low_rank_dim": 16 for name in ("a", "v", "gate", "decay")}
    extra: dict[str, Any] = {"model_type": "rwkv7", "norm_eps": 1e-5, "head_dim": 16, **ranks}
    return change_weights(write_tiny(directory, rwkv7, extra, seed), _lively)


def write_recurrent_gemma(directory: Path, seed: int = 0) -> Path:
    """A RecurrentGemma of four layers: gated linear recurrences and a sliding window of 64 tokens."""
    extra: dict[str, Any] = {
        "model_type": "recurrent_gemma",
        "num_hidden_layers": 4,
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "rope_theta": 10000.0,
        "attention_window_size": 64,
        "embeddings_scale_by_sqrt_dim": False,
        "block_types": ["recurrent", "attention"],
    }
    return change_weights(write_tiny(directory, recurrent_gemma, extra, seed), _lively)


def _lively(name: str, value: mx.array) -> mx.array:
    """What mlx-lm initializes with zeros would have nothing hang on the past. Decay is slow."""
    if name.endswith("recurrent_param"):
        return value - 4.0
    return value if mx.any(value).item() else mx.random.normal(value.shape) * 0.5


STATES: list[Callable[[Path], Path]] = [write_mamba2, write_rwkv7, write_recurrent_gemma]
