"""The truth that the engine is held against: recomputation of a whole sequence in plain attention over dequantized KV.

It shares no code with the engine: the models run as mlx-lm loads them, over a cache that quantizes, dequantizes and
returns plain arrays, in one forward pass without chunks, buffers or restores.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import numpy.typing as npt


class _DequantizedCache:
    """Holds what quantization leaves of K and V. `bits` must not be an attribute: mlx-lm would take the Q4 path."""

    def __init__(self, kv_bits: int, group: int | None) -> None:
        self._bits, self._group = kv_bits, group
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert self.keys is None, "one pass only"
        self.keys, self.values = self._rounded(keys), self._rounded(values)
        self.offset += keys.shape[2]
        return self.keys, self.values

    def make_mask(self, n: int, window_size: int | None = None, **_: Any) -> mx.array:
        at, seen = mx.arange(n)[:, None], mx.arange(n)[None]
        return (at >= seen) & (at < seen + (window_size or n))

    def _rounded(self, x: mx.array) -> mx.array:
        """In groups of 64, or of 32 where heads are of another width; the last group filled up with zeros."""
        width = x.shape[-1]
        how = {"group_size": self._group or (32 if width % 64 else 64), "bits": self._bits}
        filled = mx.pad(x, [(0, 0), (0, 0), (0, 0), (0, -width % how["group_size"])])
        return mx.dequantize(*mx.quantize(filled, **how), **how)[..., :width]


class Oracle:
    """Log-probabilities of every next token of a sequence, computed in float32 in one go, and remembered."""

    def __init__(self, directory: Path, kv_bits: int = 4, group: int | None = None) -> None:
        self._model, _ = mlx_lm.load(str(directory))
        self._model.set_dtype(mx.float32)
        self._new_cache = lambda: _DequantizedCache(kv_bits, group)
        self._remembered = lru_cache(maxsize=64)(self._computed)

    def logprobs(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """[tokens, vocabulary], read-only: row i is the distribution of the token after `token_ids[i]`."""
        return self._remembered(tuple(map(int, token_ids)))

    def logprobs_of(self, token_ids: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        """The log-probability of each token from position `start` (at least 1) on."""
        rows = self.logprobs(token_ids)
        return np.array([rows[i - 1, token_ids[i]] for i in range(start, len(token_ids))])

    def _computed(self, token_ids: tuple[int, ...]) -> npt.NDArray[np.float32]:
        caches = [self._new_cache() for _ in self._model.layers]
        logits = self._model(mx.array([list(token_ids)]), cache=caches)[0].astype(mx.float32)
        logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        logprobs.flags.writeable = False
        return logprobs
