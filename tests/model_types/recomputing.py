"""The right answer is a text computed at once, by the engine's network, and by mlx-lm over its own caches.

Both see the same K and V: what the engine has packed is given to mlx-lm unpacked. So what differs is where a layer
looks, and nothing that quantization does, which in small random models can change a choice of experts.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import ArraysCache
from numpy.typing import NDArray

from inference_service.engine.codec import KVCodec
from inference_service.engine.network import flat
from inference_service.engine.paged.alone import new_caches
from inference_service.engine.quantization import Quantized
from inference_service.models.loaded import LoadedModel

LogProbs = NDArray[np.float32]
"""[tokens, vocabulary], of what follows each token."""

_FAITHFUL = 0.5
"""The most that packing may change K or V, relative to their size; 4 bits change normal ones by 0.1."""


class _Recording(KVCodec):
    """A layer's codec that keeps what it has packed."""

    def __init__(self, codec: KVCodec) -> None:
        vars(self).update(vars(codec) | {"_sides": []})  # so that all packing is by `encode`
        self.packed: list[tuple[Quantized, Quantized]] = []

    def encode(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        packed = super().encode(keys, values)
        self.packed.append(packed)
        return packed

    def unpacked(self) -> tuple[mx.array, mx.array]:
        """K and V of the next update, in the model's own basis, as wide as whole groups."""
        return self.decode(*self.packed.pop(0))


class Recomputed:
    """A text in one chunk over empty caches, by the engine's network; `logprobs` are those after each token."""

    def __init__(self, model: LoadedModel, token_ids: Sequence[int]) -> None:
        self._network: Any = model.engine.model
        self._tokens = mx.array([list(token_ids)])
        self._codecs = [_Recording(codec) for codec in model.codecs]
        caches = new_caches(model.geometry, self._codecs)
        self.logprobs = logprobs(self._network(self._tokens, cache=caches)[0])

    def by_mlx_lm(self) -> LogProbs:
        """The same by mlx-lm over caches of its own, once.

        Raises ValueError where its model gives these other K or V than the engine's.
        """
        caches = self._network.own_caches()
        with_kv = [cache for cache in flat(caches) if not isinstance(cache, ArraysCache)]
        for cache, codec in zip(with_kv, self._codecs, strict=True):
            cache.update_and_fetch = partial(_updated, cache.update_and_fetch, codec)
        return logprobs(self._network.over_own(self._tokens, caches)[0])


def logprobs(logits: mx.array) -> LogProbs:
    return np.array(nn.log_softmax(logits.astype(mx.float32), axis=-1))


def _updated(update: Callable[..., Any], codec: _Recording, keys: mx.array, values: mx.array) -> Any:
    """An update of mlx-lm's cache with what ours has packed of the same K and V; of an indexer, halves of K."""
    halved = keys is values or not values.shape[-1]
    sides = mx.split(keys, 2, axis=-1) if halved else (keys, values)
    unpacked = [part[..., : given.shape[-1]] for part, given in zip(codec.unpacked(), sides, strict=True)]
    for part, given in zip(unpacked, sides, strict=True):
        if part.shape != given.shape or mx.linalg.norm(part - given) > _FAITHFUL * mx.linalg.norm(given):
            raise ValueError("mlx-lm's own caches get other K and V than the engine's")
    if halved:
        k = mx.concatenate(unpacked, axis=-1)
        return update(k, k if keys is values else values)
    return update(*unpacked)
