"""Small random models in the Hugging Face layout, with real tokenizers and chat templates.

Weights are sharpened and heads untied, so that outputs vary: a random model with tied embeddings repeats one token, and
then a test of greedy text cannot fail.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import deepseek_v2, gemma3_text, gpt_oss, llama, phi, plamo3, qwen2, qwen3
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model, quantize_model, save_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
BOS, START, END = "<|bos|>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "<|bos|>{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS_THINKING = (
    "<|bos|>{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Rewrites earlier turns: an assistant message loses its reasoning once another message follows."""

CORPUS = ["The colour of the boat is green, and the house by the sea is red. ", "Who told you that? Nobody knows. "]


def write_tokenizer(directory: Path, template: str = CHATML) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[BOS, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    save_tokenizer(directory, tokenizer, template)
    return int(tokenizer.get_vocab_size())


def save_tokenizer(directory: Path, tokenizer: Tokenizer, template: str) -> None:
    """A tokenizer that has BOS, START and END, as transformers loads it, with a chat template. Texts get a BOS."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": False}))


def write_llama(
    directory: Path,
    seed: int = 0,
    template: str = CHATML,
    context: int = 4096,
    head_dim: int = 64,
    vocab_size: int | None = None,
) -> Path:
    """A Llama of two layers, 4 heads over 2 KV heads; as many logits as the tokenizer has tokens, or `vocab_size`."""
    extra: dict[str, object] = {"model_type": "llama", "rope_theta": 10000.0, "head_dim": head_dim}
    if vocab_size is not None:
        extra["vocab_size"] = vocab_size
    return write_tiny(directory, llama, extra, seed, template, context)


def write_shards(directory: Path, names: Sequence[str]) -> Path:
    """Put a model's weights into files of these names, with an index that is true; its directory."""
    whole = directory / "model.safetensors"
    weights: dict[str, mx.array] = mx.load(str(whole))
    mx.eval(weights)
    whole.unlink()
    placed = {tensor: names[number % len(names)] for number, tensor in enumerate(sorted(weights))}
    for name in names:
        mx.save_safetensors(
            str(directory / name), {key: weights[key] for key, place in placed.items() if place == name}
        )
    (directory / INDEX).write_text(json.dumps({"weight_map": placed}))
    return directory


def write_llama_80(directory: Path, seed: int = 0) -> Path:
    """A Llama whose heads are 80 elements wide, as in Phi-2 and StableLM: no number of groups."""
    return write_llama(directory, seed, head_dim=80)


def write_qwen3(directory: Path, seed: int = 0) -> Path:
    """A Qwen 3 of two layers: norms on queries and keys."""
    return write_tiny(directory, qwen3, {"model_type": "qwen3", "rope_theta": 10000.0}, seed)


def write_phi(directory: Path, seed: int = 0) -> Path:
    """A Phi-2 of two layers: its attention computes in float32. With most other seeds its output does not vary."""
    extra = {"model_type": "phi", "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5}
    return write_tiny(directory, phi, extra, seed + 14)


def write_qwen2(directory: Path, seed: int = 0) -> Path:
    """A Qwen 2 of two layers: biases on queries, keys and values, which here are not zero."""
    extra = {"model_type": "qwen2", "rope_theta": 10000.0, "hidden_size": 256}
    return write_tiny(directory, qwen2, extra, seed)


def write_gemma3(directory: Path, seed: int = 0, window: int = 64, context: int = 4096) -> Path:
    """A Gemma 3 of four layers: three with a sliding window, one with full attention, one KV head."""
    extra = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "sliding_window": window,
        "sliding_window_pattern": 4,
        "query_pre_attn_scalar": 64,
    }
    return write_tiny(directory, gemma3_text, extra, seed, context=context)


def write_gpt_oss(directory: Path, seed: int = 0, window: int = 64) -> Path:
    """A GPT-OSS of four layers: sliding and full by turns, attention sinks, a mixture of experts."""
    extra = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": window,
        "rope_theta": 150000,
    }
    return write_tiny(directory, gpt_oss, extra, seed)


def write_deepseek2(directory: Path, seed: int = 0) -> Path:
    """A DeepSeek-V2 of two layers: latents of 128 and rotary keys of 64 elements, a mixture of experts."""
    extra = {
        "model_type": "deepseek_v2",
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "kv_lora_rank": 128,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    }
    return write_tiny(directory, deepseek_v2, extra, seed)


def write_plamo3(directory: Path) -> Path:
    """A PLaMo 3, which cannot run: in mlx-lm's code its window is a token longer in prefill than in decode."""
    return write_tiny(directory, plamo3, {"model_type": "plamo3", "window_size": 64, "sliding_window_pattern": 2}, 0)


def write_tiny(  # type: ignore[no-untyped-def]
    directory: Path, module, extra: dict[str, object], seed: int, template: str = CHATML, context: int = 4096
) -> Path:
    """A model of mlx-lm's `module` with random weights, of a config that `extra` completes."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "vocab_size": write_tokenizer(directory, template),
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        **extra,
    }
    (directory / "config.json").write_text(json.dumps(config))
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = {name: _sharpened(name, value) for name, value in tree_flatten(model.parameters())}
    mx.save_safetensors(str(directory / "model.safetensors"), weights)
    return directory


def change_weights(directory: Path, change: Callable[[str, mx.array], mx.array]) -> Path:
    """Write a model's weights again, each by its name and value; the model's directory."""
    path = str(directory / "model.safetensors")
    changed = {name: change(name, value) for name, value in mx.load(path).items()}
    mx.eval(changed)
    mx.save_safetensors(path, changed)
    return directory


def _sharpened(name: str, value: mx.array) -> mx.array:
    if name.endswith(("sinks", "bias")) and name != "lm_head.bias":
        return mx.random.normal(value.shape) * 0.5
    if name.endswith(("conv_k", "conv_v")):
        return mx.random.normal(value.shape)
    if value.ndim < 2:
        return value
    return value * 3.0


def write_quantized(directory: Path, source: Path, **how: Any) -> Path:
    """A model in a directory with its weights quantized, as `mlx_lm.convert` writes it."""
    network, config = quantize_model(*load_model(source), **how)
    directory.mkdir()
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "generation")):
            (directory / file.name).write_bytes(file.read_bytes())
    mx.save_safetensors(str(directory / "model.safetensors"), dict(tree_flatten(network.parameters())))
    save_config(config, directory / "config.json")
    return directory


def write_lora(directory: Path, model: Path, seed: int = 0, keys: list[str] | None = None) -> Path:
    """A LoRA adapter on the model in a directory, as `mlx_lm.lora` writes it, which changes what the model says.

    `keys` are the matrices of a layer that it changes; all by default.
    """
    parameters: dict[str, object] = {"rank": 4, "scale": 10.0, "dropout": 0.0, **({"keys": keys} if keys else {})}
    network, _ = load_model(model)
    network.freeze()
    linear_to_lora_layers(network, len(network.layers), parameters)
    mx.random.seed(seed)
    trained = tree_flatten(network.trainable_parameters())
    directory.mkdir(parents=True)
    weights = {name: mx.random.normal(weight.shape) * 0.1 for name, weight in trained}
    mx.save_safetensors(str(directory / "adapters.safetensors"), weights)
    config = {"fine_tune_type": "lora", "num_layers": len(network.layers), "lora_parameters": parameters}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory
