"""Small random models whose layers compute attention by themselves, as in `tiny_models`.

A latent is K and V of all heads, so a code that another order of sums rounds to its neighbour moves log-probabilities
by up to 0.003. Models of latents have seeds at which tests meet no such code.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_lm.models import deepseek_v3, deepseek_v32, gemma2, kimi_linear, llama4, stablelm

from tests.tiny_models import change_weights, write_tiny, write_tokenizer

_LATENT = {"kv_lora_rank": 64, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "q_lora_rank": None}


_DEEPSEEK = {
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "moe_layer_freq": 1,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
}


def write_gemma2(directory: Path, seed: int = 0) -> Path:
    """A Gemma 2 of two layers: capped scores. mlx-lm's masks of it are wrong for several rows.

    Its head is the embedding: what layers add outweighs the token itself, so that outputs vary.
    """
    write_tiny(directory, gemma2, {"model_type": "gemma2", "query_pre_attn_scalar": 64}, seed)
    outputs = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
    return change_weights(directory, lambda name, value: value * 30 if name.endswith(outputs) else value)


def write_stablelm(directory: Path, seed: int = 0) -> Path:
    extra: dict[str, Any] = {
        "model_type": "stablelm",
        "partial_rotary_factor": 0.5,
        "layer_norm_eps": 1e-5,
        "use_qkv_bias": False,
        "rope_theta": 10000.0,
        "hidden_size": 256,
    }
    return write_tiny(directory, stablelm, extra, seed)


def write_deepseek3(directory: Path, seed: int = 0) -> Path:
    """A DeepSeek V3 of two layers, one with a mixture of experts: latents in K's place, rotary keys in V's."""
    return write_tiny(directory, deepseek_v3, {**_LATENT, **_DEEPSEEK, "model_type": "deepseek_v3"}, seed + 1)


def write_deepseek32(directory: Path, seed: int = 0) -> Path:
    """A DeepSeek V3.2 of two layers: as V3, where each query sees the 48 tokens that an indexer selects."""
    extra: dict[str, Any] = {
        **_LATENT,
        **_DEEPSEEK,
        "model_type": "deepseek_v32",
        "q_lora_rank": 32,
        "index_head_dim": 128,
        "index_n_heads": 2,
        "index_topk": 48,
    }
    return write_tiny(directory, deepseek_v32, extra, seed + 3)


def write_llama4(directory: Path, seed: int = 0) -> Path:
    """A Llama 4 of five layers: four attend within chunks of 64 tokens. In mlx-lm's code it has no batches."""
    text: dict[str, Any] = {
        "model_type": "llama4_text",
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "intermediate_size": 128,
        "intermediate_size_mlp": 128,
        "interleave_moe_layer_step": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts_per_tok": 1,
        "num_local_experts": 4,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "attention_chunk_size": 64,
        "max_position_embeddings": 4096,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "use_qk_norm": True,
        "floor_scale": 128,
    }
    directory.mkdir(parents=True, exist_ok=True)
    text["vocab_size"] = write_tokenizer(directory)
    return write_tiny(directory, llama4, {"model_type": "llama4", "text_config": text}, seed + 1)


def write_kimi_linear(directory: Path, seed: int = 0) -> Path:
    """A Kimi Linear of four layers: delta attention beside latents, a mixture of experts."""
    extra: dict[str, Any] = {
        **_LATENT,
        "model_type": "kimi_linear",
        "num_hidden_layers": 4,
        "linear_attn_config": {
            "kda_layers": [1, 3],
            "full_attn_layers": [2, 4],
            "num_heads": 4,
            "head_dim": 32,
            "short_conv_kernel_size": 4,
        },
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 64,
        "moe_renormalize": True,
        "routed_scaling_factor": 1.0,
        "num_expert_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "rope_theta": 10000.0,
        "model_max_length": 4096,
    }
    return write_tiny(directory, kimi_linear, extra, seed + 1)


OWN_ATTENTION: list[Callable[[Path], Path]] = [write_stablelm, write_deepseek3, write_deepseek32, write_kimi_linear]
"""Those that are right in batches."""
