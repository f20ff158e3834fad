"""Small random models in the Hugging Face layout, with real tokenizers and chat templates; what they are is in the YAML
file of this name.

Weights are sharpened and heads untied, so that outputs vary: a random model with tied embeddings repeats one token, and
then a test of greedy text cannot fail.
"""

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import yaml
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model, quantize_model, save_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

_KNOWN: Final[dict[str, dict[str, Any]]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
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
    extra: dict[str, object] = {"rope_theta": 10000.0, "head_dim": head_dim}
    if vocab_size is not None:
        extra["vocab_size"] = vocab_size
    return write_tiny(directory, "llama", extra, seed, template, context)


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


def writer(name: str, change: Callable[[str, mx.array], mx.array] | None = None) -> Callable[..., Path]:
    """Return what writes a model of the YAML file into a directory, its weights changed by their names and values."""

    def write(directory: Path, seed: int = 0, context: int = 4096, window: int | None = None) -> Path:
        extra = {**_KNOWN[name], **({} if window is None else {"sliding_window": window})}
        module, seed = extra.pop("module", name), seed + extra.pop("seed", 0)
        write_tiny(directory, module, extra, seed, context=context)
        return directory if change is None else change_weights(directory, change)

    write.__name__ = f"write_{name}"
    return write


write_qwen3, write_qwen2, write_phi = map(writer, ("qwen3", "qwen2", "phi"))
write_gemma3, write_gpt_oss, write_deepseek2, write_plamo3 = map(writer, ("gemma3", "gpt_oss", "deepseek2", "plamo3"))


def write_tiny(
    directory: Path, name: str, extra: dict[str, Any], seed: int, template: str = CHATML, context: int = 4096
) -> Path:
    """A model of mlx-lm's module `name` with random weights, of a config that `extra` completes."""
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
        "model_type": name,
        **extra,
    }
    (directory / "config.json").write_text(json.dumps(config))
    mx.random.seed(seed)
    module = import_module(f"mlx_lm.models.{name}")
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
