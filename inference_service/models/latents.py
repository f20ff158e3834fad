"""Multi-head latent attention that keeps latents: DeepSeek V2, MiniCPM 3 and Youtu keep K and V of all heads in mlx-lm.

A token's K and V are a linear function of its latent, but for the rotary part of K, which all heads share. So latent
and rotary part are all that must be kept: 576 numbers of DeepSeek-V2-Lite's 16 x (192 + 128). They are written to a
cache as K and V of one head, as mlx-lm's DeepSeek V3 does.

One query is projected into the space of latents, and attends there: q (W c) = (q W) c. For many queries K and V of all
heads are computed from the latents, for as long as the layer is computed: that takes fewer multiplications.
"""

import logging
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from agentmem import logs
from inference_service.engine.attention.paths import fused

log = logging.getLogger(__name__)

_CLASSES: Final = {
    ("mlx_lm.models.deepseek_v2", "DeepseekV2Attention"): "scale",
    ("mlx_lm.models.minicpm3", "Attention"): "softmax_scale",
    ("mlx_lm.models.youtu_llm", "YoutuLLMAttention"): "scale",
}
"""Attention of one structure, and what each calls its scale."""


def keep_latents(model: str, network: nn.Module) -> None:
    """Replace the attention of all layers, where it is known, so that it keeps latents. `model` is its name in logs.

    Weights are moved and not computed with, nor are they read. With an adapter on the matrix that makes K and V of
    latents the layers stay as they are: of two matrices one would be left in each direction.
    """
    found = {name: module for name, module in network.named_modules() if _class(module) in _CLASSES}
    others = sorted({type(each.kv_b_proj).__name__ for each in found.values()} - {"Linear", "QuantizedLinear"})
    if others:
        message = "layers keep K and V of all heads, which take several times the memory of latents"
        logs.event(log, message, logging.WARNING, model=model, error=f"kv_b_proj is {', '.join(others)}")
        return
    network.update_modules(tree_unflatten([(name, LatentAttention(module)) for name, module in found.items()]))


def _class(module: nn.Module) -> tuple[str, str]:
    return type(module).__module__, type(module).__name__


class LatentAttention(nn.Module):  # type: ignore[misc]
    """The attention that stood in a layer, with its projections, over latents. Engine thread only.

    `kv_b_proj` is the same matrix with its rows in another order: those of K of all heads first.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        for name, child in attention.children().items():
            self[name] = child
        self.heads: int = attention.num_heads
        self.latent_width: int = attention.kv_lora_rank
        self.nope_width: int = attention.qk_nope_head_dim
        self.value_width: int = attention.v_head_dim
        self.scale: float = getattr(attention, _CLASSES[_class(attention)])
        self.kv_b_proj = _keys_first(attention.kv_b_proj, self.heads, self.nope_width)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """Attention of tokens [rows, n, width] over themselves and what `cache` holds; it then holds them, too."""
        rows, n, _ = x.shape
        q = self.q_proj(x) if "q_proj" in self else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q_nope, q_rope = mx.split(q.reshape(rows, n, self.heads, -1).swapaxes(1, 2), [self.nope_width], axis=-1)
        latents, rotary = mx.split(self.kv_a_proj_with_mqa(x), [self.latent_width], axis=-1)
        latents, rotary = self.kv_a_layernorm(latents)[:, None], rotary[:, None]
        offset = 0 if cache is None else cache.offset
        q_rope, rotary = self.rope(q_rope, offset), self.rope(rotary, offset)
        if cache is not None:
            latents, rotary = cache.update_and_fetch(latents, rotary)
        attend = self._absorbed if n == 1 else self._decompressed
        out: mx.array = self.o_proj(attend(q_nope, q_rope, latents, rotary, mask).swapaxes(1, 2).reshape(rows, n, -1))
        return out

    def _absorbed(self, q_nope: mx.array, q_rope: mx.array, latents: mx.array, rotary: mx.array, mask: Any) -> mx.array:
        """One query in the space of latents [rows, 1, tokens, latent_width]."""
        queries = self._product(q_nope, self._matrix(0, self.nope_width), transpose=False)
        scores = (queries @ latents.swapaxes(2, 3) + q_rope @ rotary.swapaxes(2, 3)) * self.scale
        if mask is not None:
            scores = mx.where(mask, scores, -mx.inf)
        out = mx.softmax(scores, axis=-1, precise=True) @ latents
        first = self.heads * self.nope_width
        return self._product(out, self._matrix(first, self.value_width), transpose=True)

    def _decompressed(
        self, q_nope: mx.array, q_rope: mx.array, latents: mx.array, rotary: mx.array, mask: Any
    ) -> mx.array:
        """Any number of queries over K and V of all heads."""
        k, v = mx.split(self.kv_b_proj(latents[:, 0]), [self.heads * self.nope_width], axis=-1)
        k, v = (part.reshape(*part.shape[:2], self.heads, -1).swapaxes(1, 2) for part in (k, v))
        rotary = mx.broadcast_to(rotary, (*k.shape[:3], rotary.shape[3]))
        queries, keys = mx.concatenate([q_nope, q_rope], axis=-1), mx.concatenate([k, rotary], axis=-1)
        return fused(queries, keys, v, self.scale, mask, None)

    def _matrix(self, first: int, rows: int) -> list[mx.array | None]:
        """So many rows of each head's part of `kv_b_proj`, from row `first` on: its weights, scales and biases."""
        parts = (self.kv_b_proj.get(name) for name in ("weight", "scales", "biases"))
        last = first + self.heads * rows
        return [part if part is None else part[first:last].reshape(self.heads, rows, -1) for part in parts]

    def _product(self, x: mx.array, matrix: list[mx.array | None], *, transpose: bool) -> mx.array:
        """[rows, heads, n, …] times each head's matrix, or its transpose."""
        weight, scales, biases = matrix
        assert weight is not None
        if scales is None:
            return x @ (weight.swapaxes(1, 2) if transpose else weight)
        by = self.kv_b_proj
        how = {"group_size": by.group_size, "bits": by.bits, "mode": by.mode}
        return mx.quantized_matmul(x, weight, scales=scales, biases=biases, transpose=transpose, **how)


def _keys_first(projection: Any, heads: int, keys: int) -> Any:
    """The same projection with its outputs in another order: K of all heads, then V of all heads."""
    for name, part in projection.parameters().items():
        by_head = part.reshape(heads, -1, *part.shape[1:])
        sides = by_head[:, :keys], by_head[:, keys:]
        projection[name] = mx.concatenate([side.reshape(-1, *part.shape[1:]) for side in sides])
    return projection
