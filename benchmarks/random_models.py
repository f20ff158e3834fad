"""Models of real geometry with random weights, in 4 bits by groups of 64, that compute in bfloat16.

    python -m benchmarks.random_models llama-3.1-8b DIRECTORY [--layers 4] [--seed 1]

writes one, with a tokenizer in which every token has some text.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks import options

BITS, GROUP_SIZE = 4, 64
GEOMETRIES: Final[dict[str, dict[str, Any]]] = json.loads((Path(__file__).parent / "geometries.json").read_text())
"""By config.json of meta-llama/Llama-3.1-8B, Qwen/Qwen2.5-14B-Instruct, google/gemma-3-12b-it (text),
openai/gpt-oss-20b, deepseek-ai/DeepSeek-V2-Lite and, with a quarter of its layers, Qwen/Qwen3-Next-80B-A3B-Instruct."""
_SPECIAL = ("<|bos|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "<|bos|>{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def random_model(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """Norms that scale by 1 + weight (Gemma's) have weights of 0: mlx-lm's 1 would make attention see one token
    each."""
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    for _, part in model.named_modules():
        if _doubles(part):
            part.weight = mx.zeros_like(part.weight)
    model.set_dtype(mx.bfloat16)
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
    config = {**GEOMETRIES[name], **({} if layers is None else {"num_hidden_layers": layers})}
    directory.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(random_model(config, seed).parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    own = {"quantization": {"group_size": GROUP_SIZE, "bits": BITS}, "eos_token_id": _SPECIAL.index("<|im_end|>")}
    (directory / "config.json").write_text(json.dumps({**config, **own}))
    write_tokenizer(directory, config["vocab_size"])


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("geometry", choices=GEOMETRIES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.geometry, arguments.directory, arguments.layers, arguments.seed)
