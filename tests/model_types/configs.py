"""A small config.json for each of mlx-lm's model types: two to six layers, 320 tokens of vocabulary, widths of 64.

mlx-lm's types give the same things different names and ignore what they do not know, so one set of sizes serves all of
them. `TYPES` has what a type needs besides; a type that is not in it is one that the census does not know yet.
"""

from typing import Any

Config = dict[str, Any]

VOCABULARY = 320
CONTEXT = 1024
LAYERS = 4
WINDOW = 16
"""Tokens that sliding layers keep, fewer than texts of a few hundred tokens have."""

_WIDTH, _HEADS, _KV_HEADS = 64, 4, 2


def _named(value: Any, names: str) -> Config:
    return dict.fromkeys(names.split(), value)


_SIZES: Config = {
    **_named(VOCABULARY, "vocab_size num_vocab vocab_size_per_layer_input"),
    **_named(CONTEXT, "max_position_embeddings model_max_length n_ctx n_positions block_size"),
    **_named(LAYERS, "num_hidden_layers num_layers num_transformer_layers n_layer n_layers"),
    **_named(_WIDTH, "hidden_size hidden_dim d_model n_embd model_dim dim block_dim dim_model_base"),
    **_named(2 * _WIDTH, "intermediate_size intermediate_size_mlp ff_intermediate_size n_inner"),
    **_named(_HEADS, "num_attention_heads num_heads num_query_heads n_head n_heads"),
    **_named(_KV_HEADS, "num_key_value_heads num_kv_heads n_kv_heads num_attention_groups"),
    **_named(32, "head_dim query_pre_attn_scalar"),
    **_named(1e-5, "rms_norm_eps norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon"),
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
_ATTENTION: Config = {
    **_named(10000.0, "rope_theta rotary_emb_base"),
    **_named(0.5, "partial_rotary_factor rotary_pct"),
    **_named(False, "attention_bias mlp_bias use_qkv_bias use_bias post_norm use_cla"),
    **_named(True, "qk_norm use_qk_norm"),
    "rotary_dim": 16,
    "rope_scaling": None,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
    "attention_window_size": WINDOW,
    "cla_share_factor": 2,
    "num_kv_reuse_layers": 1,
    "dense_attention_every_n_layers": 1,
    "clip_qkv": 8.0,
    "logits_soft_cap": 30.0,
    "no_rope_layers": [],
    **_named(1.0, "logits_scaling embedding_multiplier residual_multiplier scale_emb"),
    "attention_multiplier": 0.2,
    "scale_depth": 1.4,
}
_LATENT: Config = {
    **_named(32, "kv_lora_rank q_lora_rank qk_nope_head_dim v_head_dim index_head_dim"),
    "qk_rope_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 8,
    "attention_method": "MLA",
    **_named(True, "mla_scale_q_lora mla_scale_kv_lora"),
}
_EXPERTS: Config = {
    **_named(4, "num_experts num_local_experts n_routed_experts"),
    **_named(2, "num_experts_per_tok moe_topk zero_expert_num"),
    **_named(1, "n_shared_experts num_shared_experts num_shared_expert n_group topk_group"),
    **_named(1, "decoder_sparse_step moe_layer_freq first_k_dense_replace num_dense_layers"),
    **_named(32, "moe_intermediate_size shared_intermediate_size shared_expert_intermediate_size"),
    "ffn_hidden_size": 64,
    "expert_ffn_hidden_size": 32,
    "mlp_only_layers": [],
    **_named(True, "norm_topk_prob use_mixed_mlp_moe use_expert_bias"),
    "routed_scaling_factor": 1.0,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "zero_expert_type": "identity",
}
_RECURRENT: Config = {
    **_named(8, "state_size ssm_state_size mamba_d_state"),
    **_named(4, "conv_kernel conv1d_width mamba_d_conv linear_conv_kernel_dim time_step_rank"),
    **_named(4, "mamba_num_heads linear_num_value_heads"),
    **_named(16, "mamba_head_dim linear_key_head_dim linear_value_head_dim"),
    **_named(True, "conv_bias use_conv_bias mamba_conv_bias"),
    **_named(False, "mamba_proj_bias block_auto_adjust_ff_dim linear_allow_neg_eigval"),
    "linear_num_key_heads": 2,
    "mamba_expand": 2,
    "n_groups": 1,
    "time_step_limit": (0.001, 100.0),
    "conv_L_cache": 3,
    "block_multiple_of": 32,
    "block_ffn_dim_multiplier": 1.0,
    **_named(1, "attn_layer_offset expert_layer_offset group_norm_size"),
    **_named(2, "attn_layer_period expert_layer_period full_attention_interval layer_group_size"),
    **_named(8, "a_low_rank_dim v_low_rank_dim gate_low_rank_dim decay_low_rank_dim"),
}
_OTHERS: Config = {
    "hidden_act": "relu2",
    "ffn_dim_divisor": 16,
    "ffn_multipliers": [2.0] * LAYERS,
    "gegelu_limit": 20.0,
    "hidden_size_per_layer_input": 16,
}
BASE: Config = {**_SIZES, **_ATTENTION, **_LATENT, **_EXPERTS, **_RECURRENT, **_OTHERS}

_ROPE: Config = {"rope_theta": 10000.0, "rope_type": "default"}
_BOTH_ROPES: Config = {"full_attention": _ROPE, "sliding_attention": _ROPE}
_YARN: Config = {
    **_ROPE,
    **_named("yarn", "rope_type type"),
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
    "llama_4_scaling_beta": 0.1,
}
_BY_TURNS: Config = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_CONVOLUTIONS: Config = {"layer_types": ["conv", "full_attention"] * 2}
_KDA: Config = {
    "linear_attn_config": {
        "kda_layers": [1, 3],
        "full_attn_layers": [2, 4],
        "num_heads": 4,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
    },
    "num_experts_per_token": 2,
}
_NAS_LAYER: Config = {
    "attention": {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False},
    "ffn": {"ffn_mult": 1.0, "no_op": False, "replace_with_linear": False},
}
_NAS_WITHOUT: Config = {
    "attention": {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False},
    "ffn": _NAS_LAYER["ffn"],
}
_PRISM_MODULE: Config = {
    "path": "model.layers.0.mlp.down_proj",
    "block": 512,
    "embedding": False,
    "dtype": "float16",
}

_PLAIN = """
Klear afm7 apertus bailing_hybrid bailing_moe bailing_moe_linear bailing_moe_v3 bitnet cohere deepseek deepseek_v3
deepseek_v32 dots1 ernie4_5 gemma gemma2 gemma3_text glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_oss
gptj granite granitemoe helium hunyuan_v1_dense internlm2 internlm3 iquestloopcoder jamba lille-130m llama
longcat_flash longcat_flash_ngram mamba mimo minicpm minimax mixtral muse_glimmer nanbeige nanochat nemotron olmo2
olmo3 olmo_hybrid olmoe phi phi3 phimoe plamo3 qwen2 qwen2_moe qwen3 qwen3_5 qwen3_moe qwen3_next seed_oss solar_open
stablelm starcoder2 step3p5 talkie telechat3 youtu_llm
"""

_WITHIN = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4_text",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_k3",
    "kimi_vl": "deepseek_v3",
    "lfm2-vl": "lfm2",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3_vl",
    "mistral3": "ministral3",
    "muse_spark": "muse_spark",
    "pixtral": "llama",
    "prism_hadamard_qwen35": "qwen3_5",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
"""Types whose text model is described in `text_config`, and that text model's own type."""

TYPES: dict[str, Config] = {
    **{name: {} for name in _PLAIN.split()},
    **{name: {} for name in _WITHIN},
    "afmoe": _BY_TURNS,
    "baichuan_m1": {"sliding_window_layers": [1, 3], "conv_window": 2},
    "cohere2": {"head_dim": 16},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "moe_jitter_eps": 0},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
    },
    "deepseek_v2": {
        "q_lora_rank": None,
        "scoring_func": "softmax",
        "topk_method": "greedy",
        "rope_scaling": _YARN,
    },
    "deepseek_v41": {},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
    },
    "exaone": {"head_dim": 16},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {**_BY_TURNS, "is_moe_layer": [False, True, True, True]},
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 32,
        "attn_layer_indices": None,
        "ssm_multipliers": [1.0] * 5,
        "mlp_multipliers": [1.0, 1.0],
    },
    "gear": {"layer_types": ["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"]},
    "gemma3n": {
        "text_config": {
            "num_kv_shared_layers": 2,
            "num_hidden_layers": 6,
            "intermediate_size": [128] * 6,
            "activation_sparsity_pattern": [0.95, 0.95, 0, 0, 0, 0],
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        }
    },
    "gemma4_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "top_k_experts": 2,
        "attention_k_eq_v": False,
        "rope_parameters": None,
    },
    "glm_moe_dsa": {"rope_parameters": _ROPE},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "position_embedding_type": "nope",
    },
    "hunyuan": {"rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}},
    "kimi_k3": {
        **_KDA,
        "hidden_act": "situ",
        "activation_situ_beta": 1.0,
        "routed_expert_hidden_size": None,
    },
    "kimi_linear": {**_KDA, "moe_renormalize": True, "num_expert_group": 1, "q_lora_rank": None},
    "laguna": {"layer_types": ["full_attention", "sliding_attention"] * 2},
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS,
    "llama4": {"text_config": {"attention_chunk_size": 16, "interleave_moe_layer_step": 2, "num_experts_per_tok": 1}},
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mellum": {**_BY_TURNS, "rope_parameters": _BOTH_ROPES},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW,
        "swa_rope_theta": 10000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 32,
        "swa_v_head_dim": 32,
    },
    "minicpm3": {
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0] * 8,
            "short_factor": [1.0] * 8,
            "original_max_position_embeddings": 128,
        }
    },
    "minimax_m3_vl": {
        "text_config": {
            "index_block_size": 4,
            "index_topk_blocks": 2,
            "dense_intermediate_size": 64,
            "layer_types": ["full_attention", "sparse", "sparse", "full_attention"],
            "moe_layer_freq": [0, 1, 1, 1],
        }
    },
    "ministral3": {"rope_parameters": _YARN},
    "mistral4": {"rope_parameters": _YARN},
    "muse_spark": {
        "text_config": {
            **_BY_TURNS,
            "post_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 10000.0},
            "layer_rope_theta": [10000.0, 0.0] * 2,
            "final_logit_softcapping": 30.0,
            "output_multiplier": 1.0,
            "moe_hidden_size": 64,
            "num_shared_experts": 0,
        }
    },
    "nemotron-nas": {"hidden_act": "silu", "block_configs": [*[_NAS_LAYER] * 3, _NAS_WITHOUT]},
    "nemotron_h": {
        "hybrid_override_pattern": "M*M-*E",
        "num_hidden_layers": 6,
        "moe_shared_expert_intermediate_size": 32,
    },
    "olmo": {"mlp_hidden_size": 128, "embedding_size": VOCABULARY},
    "openelm": {"num_query_heads": [4] * LAYERS, "num_kv_heads": [2] * LAYERS},
    "phi3small": {
        "vocab_size": 100352,  # It writes logits at fixed ids.
        "head_dim": 16,
        "dense_attention_every_n_layers": 2,
        "blocksparse_block_size": 64,
        "blocksparse_num_local_blocks": 16,
        "blocksparse_vert_stride": 8,
        "mup_attn_multiplier": 1.0,
    },
    "phixtral": {},
    "plamo": {"n_shared_head": 2},
    "plamo2": {"hidden_size_per_head": 16, "mamba_num_heads": 8, "mamba_step": 2, "mamba_enabled": True},
    "prism_hadamard_qwen35": {
        "schema_version": 1,
        "tensor_namespace": "mlx-lm-text",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [_PRISM_MODULE],
        "text_config": {"intermediate_size": 512, "num_experts": 0},
    },
    "qwen": {"kv_channels": 16, "no_bias": True},
    "qwen3_5": {"text_config": {"num_experts": 0}},
    "recurrent_gemma": {
        **_named(["recurrent", "attention"], "block_types _block_types"),
        "embeddings_scale_by_sqrt_dim": True,
    },
    "rwkv7": {"head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "spark2_5": {**_BY_TURNS, "rope_parameters": _BOTH_ROPES, "hidden_act": "gelu"},
}


def config(name: str) -> Config | None:
    """The config.json of a small model of a type; None of a type that has none yet."""
    if name not in TYPES:
        return None
    own = TYPES[name]
    found = {**BASE, "model_type": name, **own}
    if name in _WITHIN:
        within = _WITHIN[name]
        inner = {**TYPES.get(within, {}), **own.get("text_config", {})}
        found["text_config"] = {**BASE, "model_type": within, **inner}
    return found
