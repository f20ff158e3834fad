"""Models of real shape with random weights, in 4 bits by groups of 64, that compute in bfloat16."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

BITS, GROUP_SIZE = 4, 64

GEOMETRIES: Final[dict[str, dict[str, Any]]] = json.loads((Path(__file__).parent / "geometries.json").read_text())
"""By config.json of meta-llama/Llama-3.1-8B, Qwen/Qwen2.5-14B-Instruct, google/gemma-3-12b-it (text),
openai/gpt-oss-20b, deepseek-ai/DeepSeek-V2-Lite and, with a quarter of its layers, Qwen/Qwen3-Next-80B-A3B-Instruct."""


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
