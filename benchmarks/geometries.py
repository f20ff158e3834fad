"""Models of real shape with random weights, in 4 bits by groups of 64, that compute in bfloat16."""

from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

BITS, GROUP_SIZE = 4, 64

LLAMA_31_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
}

QWEN_25_14B = {
    "model_type": "qwen2",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "intermediate_size": 13824,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}

GEMMA_3_12B = {
    "model_type": "gemma3_text",
    "hidden_size": 3840,
    "num_hidden_layers": 48,
    "intermediate_size": 15360,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
}

GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}

DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-6,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}

QWEN_3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 12,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 512,
    "moe_intermediate_size": 512,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "rope_theta": 10000000.0,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": False,
}
"""A quarter of its 48 layers."""

GEOMETRIES = {
    "llama-3.1-8b": LLAMA_31_8B,
    "qwen-2.5-14b": QWEN_25_14B,
    "gemma-3-12b": GEMMA_3_12B,
    "gpt-oss-20b": GPT_OSS_20B,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "qwen3-next-80b": QWEN_3_NEXT,
}
"""By config.json of meta-llama/Llama-3.1-8B, Qwen/Qwen2.5-14B-Instruct, google/gemma-3-12b-it (text),
openai/gpt-oss-20b, deepseek-ai/DeepSeek-V2-Lite and Qwen/Qwen3-Next-80B-A3B-Instruct."""


def random_model(config: dict[str, Any], seed: int = 0, *, quantized: bool = True) -> nn.Module:
    """Norms that scale by 1 + weight (Gemma's) have weights of 0: mlx-lm's 1 would make attention see one token
    each."""
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    for _, part in model.named_modules():
        if _doubles(part):
            part.weight = mx.zeros_like(part.weight)
    model.set_dtype(mx.bfloat16)
    if quantized:
        nn.quantize(model, GROUP_SIZE, BITS, class_predicate=_fits)
    for _, array in tree_flatten(model.parameters()):
        mx.eval(array)  # one by one, so that no more than one unquantized matrix exists at a time
    mx.clear_cache()
    return model


def _doubles(module: nn.Module) -> bool:
    if "RMSNorm" not in type(module).__name__ or not bool((module.weight == 1).all()):
        return False
    return type(module).__call__ is not nn.RMSNorm.__call__ and bool((module(mx.ones_like(module.weight)) > 1.5).all())


def _fits(_: str, module: nn.Module) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % GROUP_SIZE == 0
