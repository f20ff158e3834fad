"""Writes a model of real geometry with random 4-bit weights, and a tokenizer in which every token has some text.

python -m benchmarks.random_models llama-3.1-8b DIRECTORY [--layers 4] [--seed 1]
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks import options
from benchmarks.geometries import BITS, GEOMETRIES, GROUP_SIZE, random_model

_SPECIAL = ("<|bos|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "<|bos|>{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(directory: Path, size: int) -> None:
    """Write `size` tokens: special ones, bytes, and words that no text is made into."""
    pieces = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += [f"Ġw{number}" for number in range(size - len(pieces))]
    tokenizer = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def write(name: str, directory: Path, layers: int | None = None, seed: int = 0) -> None:
    config: dict[str, Any] = dict(GEOMETRIES[name])
    if layers is not None:
        config["num_hidden_layers"] = layers
    write_model(config, directory, seed)


def write_model(config: dict[str, Any], directory: Path, seed: int = 0, *, quantized: bool = True) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(random_model(config, seed, quantized=quantized).parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    quantization = {"quantization": {"group_size": GROUP_SIZE, "bits": BITS}} if quantized else {}
    (directory / "config.json").write_text(
        json.dumps({**config, **quantization, "eos_token_id": _SPECIAL.index("<|im_end|>")})
    )
    write_tokenizer(directory, config["vocab_size"])


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("geometry", choices=GEOMETRIES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.geometry, arguments.directory, arguments.layers, arguments.seed)
