"""Small random models with recurrent layers, as in `tiny_models`: attention beside gated delta nets, state spaces and
short convolutions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_lm.models import baichuan_m1, falcon_h1, granitemoehybrid, jamba, lfm2, nemotron_h, qwen3_5, qwen3_next

from tests.tiny_models import write_tiny

_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
_BY_TURNS = 4


_DELTA_NET = {
    "full_attention_interval": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}


def write_qwen3_next(directory: Path, seed: int = 0, context: int = 4096) -> Path:
    """A Qwen3-Next of four layers: gated delta nets, gated attention, a mixture of experts."""
    extra: dict[str, Any] = {
        **_EXPERTS,
        **_DELTA_NET,
        "model_type": "qwen3_next",
        "num_hidden_layers": _BY_TURNS,
        "num_experts": 4,
        "decoder_sparse_step": 2,
        "shared_expert_intermediate_size": 64,
        "mlp_only_layers": [],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    }
    return write_tiny(directory, qwen3_next, extra, seed, context=context)


def write_qwen3_5(directory: Path, seed: int = 0) -> Path:
    """A Qwen 3.5 of four layers: gated delta nets, gated attention, dense."""
    extra: dict[str, Any] = {
        **_DELTA_NET,
        "model_type": "qwen3_5",
        "num_hidden_layers": _BY_TURNS,
        "num_experts": 0,
        "head_dim": 64,
    }
    return write_tiny(directory, qwen3_5, extra, seed)


def write_lfm2(directory: Path, seed: int = 0) -> Path:
    """An LFM2 of four layers: short convolutions."""
    extra: dict[str, Any] = {
        "model_type": "lfm2",
        "num_hidden_layers": _BY_TURNS,
        "norm_eps": 1e-5,
        "conv_bias": True,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention"] * 2,
        "rope_theta": 10000.0,
        "head_dim": 16,
    }
    return write_tiny(directory, lfm2, extra, seed)


def write_granite4(directory: Path, seed: int = 0) -> Path:
    """A Granite 4 of four layers: Mamba 2 and attention without positions, a mixture of experts."""
    extra: dict[str, Any] = {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": _BY_TURNS,
        "layer_types": ["mamba", "attention"] * 2,
        "logits_scaling": 1.0,
        "attention_multiplier": 0.25,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": 10000.0,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "position_embedding_type": "nope",
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_proj_bias": False,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
        "time_step_limit": [0.001, 100.0],
    }
    return write_tiny(directory, granitemoehybrid, extra, seed)


def write_nemotron_h(directory: Path, seed: int = 0) -> Path:
    """A Nemotron-H of six layers, of which two have no memory: Mamba 2, attention, multilayer perceptrons."""
    extra: dict[str, Any] = {
        "model_type": "nemotron_h",
        "num_hidden_layers": 6,
        "hybrid_override_pattern": "M*-M*-",
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.001, 100.0],
    }
    return write_tiny(directory, nemotron_h, extra, seed)


def write_falcon_h1(directory: Path, seed: int = 0) -> Path:
    """A Falcon-H1 of two layers, each of which attends and has a state."""
    extra: dict[str, Any] = {
        "model_type": "falcon_h1",
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "projectors_bias": False,
        "mamba_d_ssm": 128,
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_conv_bias": True,
        "mamba_chunk_size": 32,
        "mamba_proj_bias": False,
        "mamba_expand": 2,
        "ssm_multipliers": [1.0] * 5,
        "mlp_multipliers": [1.0, 1.0],
    }
    return write_tiny(directory, falcon_h1, extra, seed)


def write_jamba(directory: Path, seed: int = 0) -> Path:
    """A Jamba of four layers: Mamba and attention."""
    extra: dict[str, Any] = {
        "model_type": "jamba",
        "num_hidden_layers": _BY_TURNS,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "mamba_proj_bias": False,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "head_dim": 16,
    }
    return write_tiny(directory, jamba, extra, seed)


def write_baichuan_m1(directory: Path, seed: int = 0, context: int = 4096) -> Path:
    """A Baichuan M1 of two layers, one with a window of 64 tokens: convolutions over K and V in front of attention."""
    extra: dict[str, Any] = {
        "model_type": "baichuan_m1",
        "hidden_size": 256,
        "sliding_window": 64,
        "sliding_window_layers": [1],
        "conv_window": 2,
        "rope_theta": 10000.0,
    }
    return write_tiny(directory, baichuan_m1, extra, seed, context=context)


HYBRIDS: list[Callable[[Path], Path]] = [
    write_qwen3_next,
    write_qwen3_5,
    write_lfm2,
    write_granite4,
    write_nemotron_h,
    write_falcon_h1,
    write_jamba,
    write_baichuan_m1,
]
WITHOUT_POSITIONS = [write_granite4, write_nemotron_h, write_jamba]
"""Those whose attention has no positional embedding."""
