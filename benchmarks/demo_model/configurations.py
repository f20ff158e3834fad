"""The other architectures at the demo model's size: config.json of each, in the words of its first release on the hub.

What a KV cache can get wrong differs by architecture: Qwen 2 has biases on keys, Gemma 3 windows and normed keys,
GPT-OSS windows and sinks, DeepSeek-V2 keys of another width than values. All have 6 layers x 256, 4 heads and head dim
64 (MLA: keys of 128), so that groups of 64 fit; windows are of 128 tokens, so that little recall passes through them.
"""

from __future__ import annotations

from typing import Any

from benchmarks.demo_model.tokenizer import CONTEXT, VOCABULARY

LLAMA = "llama"
ENDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 3}
_COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "initializer_range": 0.04,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "qwen2": {**_COMMON, "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "gemma3_text": {
        **_COMMON,
        "architectures": ["Gemma3ForCausalLM"],
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 128,
        "sliding_window_pattern": 3,
        "tie_word_embeddings": True,
    },
    "gpt_oss": {
        **_COMMON,
        "architectures": ["GptOssForCausalLM"],
        "head_dim": 64,
        "intermediate_size": 256,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "tie_word_embeddings": True,
    },
    "deepseek_v2": {
        **_COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_key_value_heads": 4,
        "kv_lora_rank": 256,
        "q_lora_rank": None,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 64,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 256,
        "moe_layer_freq": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        # mlx-lm asks for YaRN; a factor of 1 is none.
        "rope_scaling": {"type": "yarn", "factor": 1.0, "original_max_position_embeddings": CONTEXT},
        "tie_word_embeddings": True,
    },
}
"""By model type; what all have of tokens that end is in `ENDS`."""
UNTIED = ("gpt_oss", "deepseek_v2")
"""Exported with an output embedding of their own, equal to the input's: mlx-lm asks for one."""
QUICK = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "sliding_window": 64,
    "sliding_window_pattern": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
"""What is smaller in a model that only tries the program."""
