"""Estimates of chunks' memory by shapes. Engine thread; computes nothing."""

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from inference_service.engine.computing import EstimatedCost
from inference_service.engine.device import on_cpu, on_metal
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.sequence import SLACK
from inference_service.engine.scheduling import LayerWork
from inference_service.models.latents import LatentAttention

_FUSED_WIDTHS: Final = frozenset({64, 80, 128})
"""GPU kernels of these head widths make no scores. From MLX's source."""
_MASK_BYTES: Final = 3
"""Two comparisons and their conjunction."""
_COPIES_WITH_SINKS: Final = 3
_EXPERTS: Final = ("experts_per_tok", "experts_per_token", "top_k", "topk", "top_k_experts")
"""Suffixes of the number of experts per token."""


def estimated_cost(network: Any, geometry: Geometry, config: dict[str, Any]) -> EstimatedCost:
    size = int(geometry.dtype.size)
    full, sliding = (_spells_scores_out(geometry, group) for group in (geometry.full, geometry.sliding))
    layers = getattr(network, "layers", ())
    pair_bytes = _score_bytes(layers, geometry, config) + _MASK_BYTES
    inside = {id(module) for layer in layers for module in layer.modules()}
    dequantizes = _is_quantized(config) and not on_metal()  # there nothing is chosen
    quantized = network.modules() if dequantizes else []
    matrices = sorted((_matrix(each) for each in quantized if id(each) in inside), reverse=True)
    others = (_matrix(each) for each in quantized if id(each) not in inside)
    return EstimatedCost(
        token_bytes=size * max((_width(layer, _experts_per_token(config)) for layer in layers), default=0)
        + geometry.largest_state_bytes,
        key_bytes=geometry.layer_bytes_per_token + size * _decompressed_width(network, geometry.full.v_dim),
        pair_bytes=pair_bytes if full else 0,
        window=geometry.window,
        window_key_bytes=geometry.window_layer_bytes(0) // (geometry.window + SLACK),
        window_pair_bytes=pair_bytes if sliding else _MASK_BYTES if geometry.window else 0,
        fixed_bytes=size * sum(matrices[:2]),
        step_bytes=size * max(others, default=0),
    )


def layer_work(network: Any, geometry: Geometry, config: dict[str, Any]) -> LayerWork:
    layers, experts = getattr(network, "layers", ()), _experts_per_token(config)
    weights = max((sum(_active(each, experts) for each in layer.modules()) for layer in layers), default=0)
    return LayerWork(weights, geometry.heads * max((group.k_dim + group.v_dim for group in geometry.groups), default=0))


def _spells_scores_out(geometry: Geometry, group: Any) -> bool:
    """Return whether attention makes all heads' scores."""
    if group is None or not group.layers:
        return False
    fused = group.k_dim == group.v_dim and group.k_dim in _FUSED_WIDTHS and not geometry.latents
    return on_cpu() or not fused


def _score_bytes(layers: Sequence[nn.Module], geometry: Geometry, config: dict[str, Any]) -> int:
    """Return bytes of scores for a token and a key."""
    named = (each.get("num_attention_heads") for each in _sections(config))
    heads = max(geometry.heads, *(each for each in named if isinstance(each, int)), 1)
    sinks = any(name.endswith("sinks") for layer in layers for name, _ in tree_flatten(layer.parameters()))
    return heads * int(geometry.dtype.size) * (_COPIES_WITH_SINKS if sinks else 1)


def _is_quantized(config: dict[str, Any]) -> bool:
    return any("quantization" in each or "quantization_config" in each for each in _sections(config))


def _sections(config: dict[str, Any]) -> list[dict[str, Any]]:
    text = config.get("text_config")
    return [config, text] if isinstance(text, dict) else [config]


def _matrix(module: nn.Module) -> int:
    """Return elements that a chunk may dequantize whole."""
    if "scales" in module and hasattr(module, "group_size"):
        scales = module["scales"]
        return int(scales.size) * int(module.group_size)
    return int(module["weight"].size) if hasattr(module, "to_quantized") and "weight" in module else 0


def _active(module: nn.Module, experts_per_token: int) -> int:
    """Return elements that a token is multiplied with."""
    elements = _matrix(module)
    experts = module["weight"].shape[0] if elements and module["weight"].ndim > 2 else 1
    return elements * min(experts_per_token, experts) // experts


def _width(layer: nn.Module, experts_per_token: int) -> int:
    """Return a layer's values for a token, by rows of matrices."""
    weights = (array for name, array in tree_flatten(layer.parameters()) if name.endswith("weight") and array.ndim > 1)
    return sum(array.shape[-2] * (experts_per_token if array.ndim > 2 else 1) for array in weights)


def _experts_per_token(config: dict[str, Any]) -> int:
    found = (value for each in _sections(config) for name, value in each.items() if str(name).endswith(_EXPERTS))
    return max([1, *(value for value in found if isinstance(value, int))])


def _decompressed_width(network: Any, rotary: int) -> int:
    """Return values made of each seen latent in prefill: K, V, and K with its rotary part."""

    def width(module: Any) -> int:
        if isinstance(module, LatentAttention):
            k, v = module.decompressed(mx.zeros((1, 1, 1, module.latent_width)))  # lazy: only shapes
            return int(module.heads * (2 * k.shape[3] + rotary + v.shape[3]))
        if "embed_q" in module:
            heads = getattr(module, "num_heads", 0) or module.num_attention_heads
            return int(heads * (2 * module.qk_nope_head_dim + rotary + module.v_head_dim))
        return 0

    return max(map(width, network.modules()), default=0)
