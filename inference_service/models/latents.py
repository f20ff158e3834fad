"""Multi-head latent attention over latents, in place of mlx-lm's (DeepSeek V2, V3).

K and V are linear functions of a token's latent, except for a rotary part shared by heads, so only these are kept: 576
numbers of DeepSeek-V2-Lite's 16 x (192 + 128). Few queries attend in the space of latents: q (W c) = (q W) c; for many,
computing K and V takes fewer multiplications.
"""

import logging
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from agentmem.process import logs
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.attention.latents import MOST_ABSORBED, over_arrays
from inference_service.engine.paged.passes import KVCache, Pieces
from inference_service.families.networks import LATENTS, Latents

log = logging.getLogger(__name__)

_MANY: Final = 512
"""A matrix is dequantized first for so many latents."""


def keep_latents(model: str, network: nn.Module, backend: AttentionBackend) -> None:
    """Have known attention keep latents. With an adapter on the matrix that makes K and V, it keeps those of all
    heads.
    """
    known = [(name, module, row) for name, module in network.named_modules() if (row := _row(module))]
    found = {name: module for name, module, row in known if row.all_heads}
    others = sorted(
        {
            f"{type(each.kv_b_proj).__name__} with a bias"
            if "bias" in each.kv_b_proj
            else type(each.kv_b_proj).__name__
            for each in found.values()
        }
        - {"Linear", "QuantizedLinear"}
    )
    if others:
        message = "layers keep K and V of all heads, which take several times the memory of latents"
        logs.event(log, message, logging.WARNING, model=model, error=f"kv_b_proj is {', '.join(others)}")
        return
    replaced: dict[str, LatentAttention] = {name: _OneMatrix(each, backend) for name, each in found.items()}
    replaced |= {name: _TwoMatrices(module, backend) for name, module, row in known if not row.all_heads}
    network.update_modules(tree_unflatten(list(replaced.items())))


def _row(module: nn.Module) -> Latents | None:
    return LATENTS.get((type(module).__module__, type(module).__name__))


class LatentAttention(nn.Module):  # type: ignore[misc]
    """Engine thread only."""

    def __init__(self, attention: Any, backend: AttentionBackend) -> None:
        super().__init__()
        for name, child in attention.children().items():
            self[name] = child
        self.heads: int = attention.num_heads
        self.latent_width: int = attention.kv_lora_rank
        self.nope_width: int = attention.qk_nope_head_dim
        row = _row(attention) or Latents()
        self.scale: float = getattr(attention, row.scale)
        self._backend = backend
        self._last = row.last

    def absorbed(self, queries: mx.array) -> mx.array:
        """Project queries [rows, heads, n, nope_width] to latents."""
        raise NotImplementedError

    def of_latents(self, outputs: mx.array) -> mx.array:
        """Project [rows, heads, n, latent_width] to [rows, heads, n, v_dim]."""
        raise NotImplementedError

    def decompressed(self, latents: mx.array) -> tuple[mx.array, mx.array]:
        """Return K without rotary part, and V, of latents [rows, 1, tokens, latent_width]."""
        raise NotImplementedError

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """Attend from tokens [rows, n, width] to themselves and `cache`."""
        rows, n, _ = x.shape
        q = self.q_proj(x) if "q_proj" in self else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q_nope, q_rope = mx.split(q.reshape(rows, n, self.heads, -1).swapaxes(1, 2), [self.nope_width], axis=-1)
        latents, rotary = mx.split(self.kv_a_proj_with_mqa(x), [self.latent_width], axis=-1)
        latents, rotary = self.kv_a_layernorm(latents)[:, None], rotary[:, None]
        if "rope" in self:  # Kimi Linear has no positions
            offset = 0 if cache is None else cache.offset
            q_rope, rotary = self.rope(q_rope, offset), self.rope(rotary, offset)
        if isinstance(cache, KVCache):
            out = self._over_seen(q_nope, q_rope, cache.update_and_fetch(latents, rotary), mask)
        else:
            if cache is not None:
                latents, rotary = cache.update_and_fetch(latents, rotary)
            out = self._over_arrays(q_nope, q_rope, latents, rotary, mask)
        last: mx.array = self[self._last](out.swapaxes(1, 2).reshape(rows, n, -1))
        return last

    def _over_seen(self, q_nope: mx.array, q_rope: mx.array, seen: tuple[Any, Any], mask: Any) -> mx.array:
        """Few queries attend over latents, many over all heads."""
        self._backend.note(self.heads, latents=True)
        if isinstance(seen[0], KVCache):
            out = seen[0].attend_latents(self.absorbed(q_nope), q_rope, self.scale)
            return self.of_latents(out[..., : self.latent_width])
        if not isinstance(seen[0], Pieces):
            return self._over_some(q_nope, q_rope, *seen, mask)
        found, row = [], 0
        for latents, rotary, n, _ in seen[0]:
            nope, rope = (each[row : row + n].swapaxes(0, 2) for each in (q_nope, q_rope))
            found.append(self._over_some(nope, rope, latents, rotary, "causal" if n > 1 else None).swapaxes(0, 2))
            row += n
        return mx.concatenate(found)

    def _over_some(
        self, q_nope: mx.array, q_rope: mx.array, latents: mx.array, rotary: mx.array, mask: Any
    ) -> mx.array:
        if q_nope.shape[2] > MOST_ABSORBED:
            return self._over_arrays(q_nope, q_rope, latents, rotary, mask)
        return self.of_latents(over_arrays(self.absorbed(q_nope), q_rope, latents, rotary, self.scale, mask))

    def _over_arrays(
        self, q_nope: mx.array, q_rope: mx.array, latents: mx.array, rotary: mx.array, mask: Any
    ) -> mx.array:
        k, v = self.decompressed(latents)
        rotary = mx.broadcast_to(rotary, (*k.shape[:3], rotary.shape[3]))
        queries, keys = mx.concatenate([q_nope, q_rope], axis=-1), mx.concatenate([k, rotary], axis=-1)
        return _fused(queries, keys, v, self.scale, mask)


class _TwoMatrices(LatentAttention):
    """`embed_q` projects queries, `unembed_out` latents."""

    def absorbed(self, queries: mx.array) -> mx.array:
        out: mx.array = self.embed_q(queries)
        return out

    def of_latents(self, outputs: mx.array) -> mx.array:
        out: mx.array = self.unembed_out(outputs)
        return out

    def decompressed(self, latents: mx.array) -> tuple[mx.array, mx.array]:
        return self.embed_q(latents, transpose=False), self.unembed_out(latents)


class _OneMatrix(LatentAttention):
    """`kv_b_proj` makes K and V. Rows are reordered, K of all heads first, for one product or two parts."""

    def __init__(self, attention: Any, backend: AttentionBackend) -> None:
        super().__init__(attention, backend)
        _keys_first(self.kv_b_proj, self.heads, self.nope_width)
        self._parts: list[Any] = []

    def absorbed(self, queries: mx.array) -> mx.array:
        return self._by_head(queries, 0, transpose=False)

    def of_latents(self, outputs: mx.array) -> mx.array:
        return self._by_head(outputs, 1, transpose=True)

    def decompressed(self, latents: mx.array) -> tuple[mx.array, mx.array]:
        k, v = mx.split(self._all_heads(latents[:, 0]), [self.heads * self.nope_width], axis=-1)
        k, v = (part.reshape(*part.shape[:2], self.heads, -1).swapaxes(1, 2) for part in (k, v))
        return k, v

    def _all_heads(self, latents: mx.array) -> mx.array:
        """Return K and V of latents [rows, tokens, latent_width]. Dequantizing for 8,192 took 129 µs in all, a
        quantized matmul 314 (H200).
        """
        by = self.kv_b_proj
        if "scales" not in by or latents.shape[1] < _MANY:
            product: mx.array = by(latents)
            return product
        how = {"group_size": by.group_size, "bits": by.bits, "mode": by.mode, "dtype": latents.dtype}
        return latents @ mx.dequantize(by.weight, by.scales, by.get("biases"), **how).T

    def _by_head(self, x: mx.array, part: int, *, transpose: bool) -> mx.array:
        """Multiply [rows, heads, n, …] by each head's matrix of K (0) or V (1)."""
        rows, heads, n, width = x.shape
        weight, *rest = self._of_side(part)
        x = x.swapaxes(0, 1).reshape(heads, rows * n, width)  # each matrix is read once for all rows
        if rest:
            scales, biases = rest
            by = self.kv_b_proj
            how = {"group_size": by.group_size, "bits": by.bits, "mode": by.mode}
            out = mx.quantized_matmul(x, weight, scales=scales, biases=biases, transpose=transpose, **how)
        else:
            out = x @ (weight.swapaxes(1, 2) if transpose else weight)
        return out.reshape(heads, rows, n, -1).swapaxes(0, 1)

    def _of_side(self, part: int) -> list[Any]:
        """Return views of K's (0) or V's (1) weights by head."""
        if not self._parts or self._parts[0] is not self.kv_b_proj.weight:
            wholes = [self.kv_b_proj.get(name) for name in ("weight", "scales", "biases") if name in self.kv_b_proj]
            if len(wholes) == 2:
                wholes.append(None)
            end = self.heads * self.nope_width
            sides = [
                [whole if whole is None else whole[at].reshape(self.heads, -1, whole.shape[1]) for whole in wholes]
                for at in (slice(end), slice(end, None))
            ]
            self._parts = [self.kv_b_proj.weight, *sides]
        found: list[Any] = self._parts[1 + part]
        return found


def _fused(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any) -> mx.array:
    """Pad V to K's width: no fused kernel takes both."""
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = mx.pad(v, [(0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)])
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)[..., :width]


def _keys_first(projection: Any, heads: int, keys: int) -> None:
    """Reorder outputs: K of all heads, then V."""
    for name, part in projection.parameters().items():
        by_head = part.reshape(heads, -1, *part.shape[1:])
        sides = by_head[:, :keys], by_head[:, keys:]
        projection[name] = mx.concatenate([side.reshape(-1, *part.shape[1:]) for side in sides])
