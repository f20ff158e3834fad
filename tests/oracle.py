"""The truth that the engine is held against: recomputation of a whole sequence in plain attention over dequantized KV.

It shares no code with the engine: the models run as mlx-lm loads them, over a cache that quantizes, dequantizes and
returns plain arrays, in one forward pass without chunks, buffers or restores.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import ArraysCache, CacheList, make_prompt_cache

from inference_service.engine.attention.backend import AttentionBackend
from inference_service.engine.calibrating import TOKENS, calibrate
from inference_service.engine.quality import other_text
from inference_service.models.loaded import read_weights
from inference_service.models.opening import ModelSpec, open_network, open_text


class _DequantizedCache:
    """Holds what quantization leaves of K and V, one pass long, by the scheme `balanced`, or `rotated` without bases.

    `bits` must not be an attribute: mlx-lm would take the path of its own quantized caches. An indexer, whose K is its
    V, keeps the halves of K as both.
    """

    start_position = 0
    """Chunked attention reads it for a mask of its own."""

    def __init__(self, bits: int, k: "_Measured", v: "_Measured") -> None:
        self._its_bits, self._measured = bits, (k, v)
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert not self.offset, "one pass only"
        self.offset += keys.shape[2]
        sides = _halves(keys) if keys is values else (keys, values)
        self.k, self.v = (_Side(*side, self._its_bits) for side in zip(sides, self._measured, strict=True))
        self.shown = self.k.values, self.v.values
        if keys is values:
            self.shown = (mx.concatenate(self.shown, axis=-1),) * 2
        self.keys, self.values = self.shown
        return self.shown

    def maybe_trim_front(self) -> None:
        """Do nothing: chunked attention has its own mask."""

    def make_mask(self, n: int, window_size: int | None = None, **_: Any) -> mx.array:
        at, seen = mx.arange(n)[:, None], mx.arange(n)[None]
        return (at >= seen) & (at < seen + (window_size or n))

    def attend(self, queries: mx.array, scale: float, mask: Any, sinks: Any) -> mx.array:
        """Attention over what is left of K and V, as the model would see it: rotated back, and with their means."""
        return _attention(queries, self.k.values, self.v.values, scale, mask, sinks)


def _halves(x: mx.array) -> tuple[mx.array, mx.array]:
    """Along the last axis."""
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]


class _Measured(NamedTuple):
    """The mean of K or V, float32 [kv_heads, 1, width], and E, float64 [kv_heads, width, width], if there is one."""

    mean: mx.array
    basis: npt.NDArray[np.float64] | None


class _Side:
    """K or V [rows, kv_heads, tokens, width] centred, balanced, rotated and quantized.

    `values` are what that leaves, rotated back, with the mean. A group has 64 elements, or 32 where heads are of
    another width. What a layer rounds next hangs on the last bits: it is rotated back as the engine does it; a matrix
    of signs must agree.
    """

    def __init__(self, x: mx.array, measured: _Measured, bits: int) -> None:
        width, mean = x.shape[-1], measured.mean
        how = {"group_size": 32 if width % 64 else 64, "bits": bits}
        missing = (0, -width % how["group_size"])
        filled = mx.pad(x, [(0, 0), (0, 0), (0, 0), missing])
        filled_mean = mx.pad(mean, [(0, 0), (0, 0), missing])
        if measured.basis is None:
            left = _left(_rotated(filled - filled_mean), how)
            back = _rotated_back(left)
            assert mx.allclose(
                back, left @ mx.array(_rotation(filled.shape[-1]).T.astype(np.float32)), rtol=1e-4, atol=1e-4
            )
            self.values = (back + filled_mean)[..., :width]
            return
        into = (_padded(measured.basis, missing[1]) @ _rotation(filled.shape[-1])).astype(np.float32)
        out = mx.array(np.linalg.inv(into.astype(np.float64)).astype(np.float32))
        packed = mx.addmm(-(filled_mean @ mx.array(into)), filled, mx.array(into))
        left = _left(packed, how)
        self.values = mx.addmm(filled_mean, left, out)[..., :width]


def _left(x: mx.array, how: dict[str, int]) -> mx.array:
    """Return x after quantization: MLX's codes, on the straight line of each group that is nearest to it.

    What a layer rounds next hangs on the last bits: lines are found as the engine finds them; NumPy's must agree.
    """
    packed = mx.quantize(x, **how)
    if how["bits"] == 8:
        return mx.dequantize(*packed, **how)
    scale, bias = (part[..., None] for part in packed[1:])
    n = how["group_size"]
    one = mx.ones_like(packed[1])
    levels = mx.dequantize(packed[0], one, 0 * one, **how).reshape(*scale.shape[:-1], n)
    wanted = x.reshape(levels.shape)
    off = (wanted - bias) / scale - levels
    middle, error, both, squares = (
        each.sum(axis=-1, keepdims=True) for each in (levels, off, off * levels, levels * levels)
    )
    spread = squares - middle * middle / n
    wide = spread > 0.5
    steeper = mx.where(wide, (both - error * middle / n) / mx.where(wide, spread, 1.0), 0.0)
    slope = scale * (1.0 + steeper)
    fitted = bias + scale * ((error + middle) / n) - slope * (middle / n)
    found = mx.dequantize(packed[0], slope[..., 0], fitted[..., 0], **how)
    exact = _nearest(*(np.array(each, np.float64) for each in (wanted, levels)))
    assert np.allclose(np.array(found).reshape(exact.shape), exact, rtol=1e-3, atol=1e-4)
    return found


def _nearest(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the nearest a y + b of each row of x."""
    off = y - y.mean(axis=-1, keepdims=True)
    squares = np.square(off).sum(axis=-1, keepdims=True)
    slope = (off * x).sum(axis=-1, keepdims=True) / np.where(squares > 0, squares, 1)
    found: npt.NDArray[np.float64] = slope * off + x.mean(axis=-1, keepdims=True)
    return found


def _attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any, sinks: Any) -> mx.array:
    """MLX's own over plain arrays; V is padded to K's width where it is narrower (MLA)."""
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = mx.pad(v, [(0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)])
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)[..., :width]


@cache
def _signs(width: int) -> npt.NDArray[np.float32]:
    """Random ones, which are written down as a hash."""
    whole = int.from_bytes(hashlib.shake_256(b"agentmem.rotated").digest(-(-width // 8)), "little")
    return np.array([-1.0 if whole >> i & 1 else 1.0 for i in range(width)], np.float32)


@cache
def _rotation(width: int) -> npt.NDArray[np.float64]:
    """The signs, and Sylvester's matrix for each block, the largest power of two that divides the width."""
    one = np.ones((1, 1))
    while width % (2 * len(one)) == 0:
        one = np.block([[one, one], [one, -one]])
    blocks = np.kron(np.eye(width // len(one)), one / np.sqrt(len(one)))
    return np.asarray(np.diag(_signs(width).astype(np.float64)) @ blocks)


def _rotated(x: mx.array) -> mx.array:
    return _transformed(x * mx.array(_signs(x.shape[-1])))


def _rotated_back(x: mx.array) -> mx.array:
    return _transformed(x) * mx.array(_signs(x.shape[-1]))


def _transformed(x: mx.array) -> mx.array:
    width = x.shape[-1]
    return mx.hadamard_transform(x.reshape(*x.shape[:-1], -1, width & -width)).reshape(x.shape)


_patched: set[str] = set()


def _patch(model: Any) -> None:
    """Have the model's modules attend by the oracle's caches, where it is one of these."""
    for name in {type(module).__module__ for _, module in model.named_modules()} - _patched:
        module = sys.modules[name]
        if original := getattr(module, "scaled_dot_product_attention", None):
            module.scaled_dot_product_attention = partial(_attend, original)  # type: ignore[attr-defined]
            _patched.add(name)


def _attend(
    original: Any, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
) -> Any:
    if isinstance(cache, _DequantizedCache) and keys is cache.shown[0]:  # Others made something else of what they saw.
        return cache.attend(queries, scale, mask, sinks)
    return original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)


class _Latents(nn.Module):
    """DeepSeek V2's attention over latents: mlx-lm's keeps K and V of all heads, which are computed from them here."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self._its = attention

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        its, (rows, n, _) = self._its, x.shape
        q = its.q_proj(x) if its.q_lora_rank is None else its.q_b_proj(its.q_a_layernorm(its.q_a_proj(x)))
        q = q.reshape(rows, n, its.num_heads, -1).transpose(0, 2, 1, 3)
        of_rope = its.rope(q[..., its.qk_nope_head_dim :], 0)
        compressed = its.kv_a_proj_with_mqa(x)
        latents = its.kv_a_layernorm(compressed[..., : its.kv_lora_rank])[:, None]
        latents, rotary = cache.update_and_fetch(latents, its.rope(compressed[:, None, :, its.kv_lora_rank :], 0))
        kv = its.kv_b_proj(latents[:, 0]).reshape(rows, n, its.num_heads, -1).transpose(0, 2, 1, 3)
        k = mx.concatenate([kv[..., : its.qk_nope_head_dim], mx.repeat(rotary, its.num_heads, axis=1)], axis=-1)
        q = mx.concatenate([q[..., : its.qk_nope_head_dim], of_rope], axis=-1)
        out = _attention(q, k, kv[..., its.qk_nope_head_dim :], its.scale, cache.make_mask(n), None)
        return its.o_proj(out.transpose(0, 2, 1, 3).reshape(rows, n, -1))


def _keep_latents(model: Any) -> None:
    for layer in model.layers:
        if type(getattr(layer, "self_attn", None)).__name__ == "DeepseekV2Attention":
            layer.self_attn = _Latents(layer.self_attn)


def _padded(matrices: npt.NDArray[np.float64], missing: int) -> npt.NDArray[np.float64]:
    heads, width, _ = matrices.shape
    padded = np.tile(np.eye(width + missing), (heads, 1, 1))
    padded[:, :width, :width] = matrices
    return padded


def _read(calibration: Mapping[str, npt.NDArray[Any]]) -> list[tuple[_Measured, _Measured]]:
    def side(name: str, layer: int) -> _Measured:
        mean = mx.array(calibration[f"{name}.{layer}"].astype(np.float32))[:, None]
        if (axes := calibration.get(f"{name}_axes.{layer}")) is None:
            return _Measured(mean, None)
        lengths = calibration[f"{name}_lengths.{layer}"].astype(np.float64)
        return _Measured(mean, axes.astype(np.float64) / 127 @ (lengths[:, :, None] * np.eye(lengths.shape[1])))

    return [(side("k", layer), side("v", layer)) for layer in range(sum(name.startswith("k.") for name in calibration))]


@cache
def _calibrated(directory: Path) -> Mapping[str, npt.NDArray[Any]]:
    """Measure a model as a worker does: data, which has tests of its own."""
    spec = ModelSpec("oracle", directory, dtype="float32")
    info, network = open_network(spec, open_text(spec), AttentionBackend())
    for _ in read_weights(info, network):
        pass
    return calibrate(network, other_text(info.tokenizer, TOKENS), info.geometry).arrays


class Oracle:
    """Log-probabilities of every next token of a sequence, computed in float32 in one go, and remembered.

    Means and bases are measured as a worker does it, on the text that it takes, unless they are given, by name as in
    its file.
    """

    def __init__(
        self, directory: Path, bits: int = 4, calibration: Mapping[str, npt.NDArray[np.float16]] | None = None
    ) -> None:
        self._model, _ = mlx_lm.load(str(directory))
        self._model.set_dtype(mx.float32)
        _patch(self._model)
        _keep_latents(self._model)
        layers = _read(_calibrated(directory) if calibration is None else calibration)
        self._new_caches = lambda: self._caches([_DequantizedCache(bits, *each) for each in layers])
        self._remembered = lru_cache(maxsize=64)(self._computed)

    def _caches(self, with_kv: Sequence[Any]) -> list[Any]:
        """The model's own caches, with these in the place of those with KV."""
        left = iter(with_kv)

        def replaced(cache: Any) -> Any:
            if isinstance(cache, CacheList):
                return CacheList(*map(replaced, cache.caches))
            return cache if isinstance(cache, ArraysCache) else next(left)

        return [replaced(cache) for cache in make_prompt_cache(self._model)]

    def logprobs(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """[tokens, vocabulary], read-only: row i is the distribution of the token after `token_ids[i]`."""
        return self._remembered(tuple(map(int, token_ids)))

    def logprobs_of(self, token_ids: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        """The log-probability of each token from position `start` (at least 1) on."""
        rows = self.logprobs(token_ids)
        return np.array([rows[i - 1, token_ids[i]] for i in range(start, len(token_ids))])

    def _computed(self, token_ids: tuple[int, ...]) -> npt.NDArray[np.float32]:
        logits = self._model(mx.array([list(token_ids)]), cache=self._new_caches())[0].astype(mx.float32)
        logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        logprobs.flags.writeable = False
        return logprobs
