"""Estimates of memory that a network's chunks take, by its shapes. Engine thread; nothing is computed."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from inference_service.engine.computing import EstimatedCost
from inference_service.engine.cuda_kernel import available
from inference_service.engine.device import on_cpu
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.sequence import SLACK
from inference_service.models.latents import LatentAttention

_FUSED_WIDTHS: Final = frozenset({64, 80, 128})
"""Widths of heads with a fused GPU kernel for many queries: the scores then never exist. Read in MLX's source."""
_MASK_BYTES: Final = 3
"""Bytes of a token-key pair while a mask is made: two comparisons, and both together."""
_COPIES_WITH_SINKS: Final = 3
_EXPERTS: Final = ("experts_per_tok", "experts_per_token", "top_k", "topk", "top_k_experts")
"""Ends of names in config.json for the number of experts that a token has."""


def estimated_cost(network: Any, geometry: Geometry, config: dict[str, Any]) -> EstimatedCost:
    """Return the cost of chunks of the network as it is, or once its weights are quantized."""
    size = int(geometry.dtype.size)
    full, sliding = (_spells_scores_out(geometry, group) for group in (geometry.full, geometry.sliding))
    layers = getattr(network, "layers", ())
    pair_bytes = _score_bytes(layers, geometry, config) + _MASK_BYTES
    inside = {id(module) for layer in layers for module in layer.modules()}
    dequantizes = _is_quantized(config) and (on_cpu() or available())  # On Metal nothing is chosen.
    quantized = network.modules() if dequantizes else []
    matrices = sorted((_matrix(each) for each in quantized if id(each) in inside), reverse=True)
    others = (_matrix(each) for each in quantized if id(each) not in inside)
    return EstimatedCost(
        token_bytes=size * max((_width(layer, _experts_per_token(config)) for layer in layers), default=0)
        + _largest_state(geometry),
        key_bytes=geometry.layer_bytes_per_token + size * _decompressed_width(network, geometry.full.v_dim),
        pair_bytes=pair_bytes if full else 0,
        window=geometry.window,
        window_key_bytes=geometry.window_layer_bytes(0) // (geometry.window + SLACK),
        window_pair_bytes=pair_bytes if sliding else _MASK_BYTES if geometry.window else 0,
        fixed_bytes=size * sum(matrices[:2]),
        step_bytes=size * max(others, default=0),
    )


def _spells_scores_out(geometry: Geometry, group: Any) -> bool:
    """Return whether attention over a group of layers makes an array of the scores of all heads."""
    if group is None or not group.layers:
        return False
    fused = group.k_dim == group.v_dim and group.k_dim in _FUSED_WIDTHS and not geometry.latents
    return on_cpu() or not fused


def _score_bytes(layers: Sequence[nn.Module], geometry: Geometry, config: dict[str, Any]) -> int:
    """Bytes of the scores of all heads for a token and a key; with sinks they are there three times."""
    named = (each.get("num_attention_heads") for each in _sections(config))
    heads = max(geometry.heads, *(each for each in named if isinstance(each, int)), 1)
    sinks = any(name.endswith("sinks") for layer in layers for name, _ in tree_flatten(layer.parameters()))
    return heads * int(geometry.dtype.size) * (_COPIES_WITH_SINKS if sinks else 1)


def _largest_state(geometry: Geometry) -> int:
    """Bytes of a recurrent layer's state, which its code may make for each token; 0 without such layers."""
    arrays = geometry.states.arrays if geometry.states else ()
    return max((sum(array.nbytes for array in each) for each in arrays), default=0)


def _is_quantized(config: dict[str, Any]) -> bool:
    return any("quantization" in each or "quantization_config" in each for each in _sections(config))


def _sections(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The configuration, and that of its text model where that has one of its own."""
    text = config.get("text_config")
    return [config, text] if isinstance(text, dict) else [config]


def _matrix(module: nn.Module) -> int:
    """Elements of a module's own weights that a chunk may dequantize as a whole; 0 where it has none."""
    if "scales" in module and "group_size" in module:
        scales = module["scales"]
        return int(scales.size) * int(module.group_size)
    return int(module["weight"].size) if hasattr(module, "to_quantized") and "weight" in module else 0


def _width(layer: nn.Module, experts_per_token: int) -> int:
    """Values that a layer's projections give for a token, by the rows of its matrices, quantized or not; those of
    experts count as often as a token has experts.
    """

    def rows() -> Iterator[int]:
        for name, array in tree_flatten(layer.parameters()):
            if name.endswith("weight") and array.ndim > 1:
                yield array.shape[-2] * (experts_per_token if array.ndim > 2 else 1)

    return sum(rows())


def _experts_per_token(config: dict[str, Any]) -> int:
    """Experts that a token has, by config.json; 1 where it does not say."""
    found = (value for each in _sections(config) for name, value in each.items() if str(name).endswith(_EXPERTS))
    return max([1, *(value for value in found if isinstance(value, int))])


def _decompressed_width(network: Any, rotary: int) -> int:
    """How many values of each token that is seen a layer makes of its latent in prefill; 0 without latents.

    K and V of all heads, and K once more with the rotary part behind it; in our attention, and in mlx-lm's.
    """

    def width(module: Any) -> int:
        if isinstance(module, LatentAttention):
            k, v = module.decompressed(mx.zeros((1, 1, 1, module.latent_width)))  # Lazy: only shapes are wanted.
            return int(module.heads * (2 * k.shape[3] + rotary + v.shape[3]))
        if "embed_q" in module:
            heads = getattr(module, "num_heads", 0) or module.num_attention_heads
            return int(heads * (2 * module.qk_nope_head_dim + rotary + module.v_head_dim))
        return 0

    return max(map(width, network.modules()), default=0)
