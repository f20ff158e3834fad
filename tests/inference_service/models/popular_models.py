"""Shapes of the 20 models that are run most, as their config.json files say, and how many parameters they have."""

from typing import Any


def _dense(
    kind: str, hidden: int, layers: int, inner: int, heads: int, kv_heads: int, width: int, words: int, context: int
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "vocab_size": words,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "quantization": {"group_size": 64, "bits": 4},
    }


def _gemma3(hidden: int, layers: int, inner: int, heads: int, kv_heads: int, width: int, window: int) -> dict[str, Any]:
    long = 32_768 if layers == 26 else 131_072
    shape = _dense("gemma3_text", hidden, layers, inner, heads, kv_heads, width, 262_144, long)
    scales = {"query_pre_attn_scalar": width, "rope_local_base_freq": 10000.0}
    return shape | scales | {"sliding_window": window, "sliding_window_pattern": 6}


_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1}
_QWEN_3_MOE = {**_EXPERTS, "mlp_only_layers": [], "norm_topk_prob": True, "attention_bias": False}
_GPT_OSS = {
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}

POPULAR: dict[str, tuple[dict[str, Any], float]] = {
    "SmolLM2-135M": (_dense("llama", 576, 30, 1536, 9, 3, 64, 49_152, 8192), 0.135e9),
    "SmolLM2-1.7B": (_dense("llama", 2048, 24, 8192, 32, 32, 64, 49_152, 8192), 1.71e9),
    "Llama-3.2-1B": (_dense("llama", 2048, 16, 8192, 32, 8, 64, 128_256, 131_072), 1.24e9),
    "Llama-3.2-3B": (_dense("llama", 3072, 28, 8192, 24, 8, 128, 128_256, 131_072), 3.21e9),
    "Llama-3.1-8B": (_dense("llama", 4096, 32, 14_336, 32, 8, 128, 128_256, 131_072), 8.03e9),
    "Llama-3.3-70B": (_dense("llama", 8192, 80, 28_672, 64, 8, 128, 128_256, 131_072), 70.6e9),
    "Qwen2.5-0.5B": (_dense("qwen2", 896, 24, 4864, 14, 2, 64, 151_936, 32_768), 0.494e9),
    "Qwen2.5-7B": (_dense("qwen2", 3584, 28, 18_944, 28, 4, 128, 152_064, 32_768), 7.62e9),
    "Qwen2.5-14B": (_dense("qwen2", 5120, 48, 13_824, 40, 8, 128, 152_064, 32_768), 14.8e9),
    "Qwen2.5-32B": (_dense("qwen2", 5120, 64, 27_648, 40, 8, 128, 152_064, 32_768), 32.8e9),
    "Qwen3-0.6B": (_dense("qwen3", 1024, 28, 3072, 16, 8, 128, 151_936, 40_960), 0.6e9),
    "Qwen3-4B": (_dense("qwen3", 2560, 36, 9728, 32, 8, 128, 151_936, 262_144), 4.02e9),
    "Qwen3-8B": (_dense("qwen3", 4096, 36, 12_288, 32, 8, 128, 151_936, 40_960), 8.19e9),
    "Qwen3-30B-A3B": (_dense("qwen3_moe", 2048, 48, 6144, 32, 4, 128, 151_936, 262_144) | _QWEN_3_MOE, 30.5e9),
    "Mistral-7B": (_dense("llama", 4096, 32, 14_336, 32, 8, 128, 32_768, 32_768), 7.25e9),
    "Mistral-Nemo-12B": (_dense("llama", 5120, 40, 14_336, 32, 8, 128, 131_072, 1_024_000), 12.2e9),
    "gemma-3-1b": (_gemma3(1152, 26, 6912, 4, 1, 256, 512), 1.0e9),
    "gemma-3-4b": (_gemma3(2560, 34, 10_240, 8, 4, 256, 1024), 3.88e9),
    "gemma-3-12b": (_gemma3(3840, 48, 15_360, 16, 8, 256, 1024), 11.8e9),
    "gpt-oss-20b": (_dense("gpt_oss", 2880, 24, 2880, 64, 8, 64, 201_088, 131_072) | _GPT_OSS, 20.9e9),
}


def element_bytes(parameters: float) -> dict[str, int]:
    """Bytes of its files by dtype: 4 bits a parameter, and two numbers in bfloat16 for each 64 of them."""
    return {"U32": int(parameters / 2), "BF16": int(parameters * 2 * 2 / 64)}
