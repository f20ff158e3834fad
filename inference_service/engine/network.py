"""A model called with one flat list of caches; mlx-lm groups some."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, make_prompt_cache

from inference_service.engine.head import Head
from inference_service.engine.paged.views import viewed

Model = Callable[[mx.array, Sequence[Any]], mx.array]
"""(tokens [rows, n], caches) to logits [rows, n, vocabulary]."""


class Network:
    """Engine thread only."""

    def __init__(self, model: Any, *, shows_arrays: bool = False) -> None:
        self.model = model
        self.shows_arrays = shows_arrays
        self.rows_together = True
        """Set by `models.proof`: a pass may have rows of several sequences."""
        self.rides = True
        """As well, several tokens of a sequence as rows."""
        self.narrows = True
        """False once logits of few tokens have failed."""
        self.computed: Model = partial(_computed, model, shows_arrays, _layout_of(self.own_caches()))
        """Without a reference to this object: traces would make a cycle."""

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        return self.computed(tokens, cache)

    def at(self, wanted: mx.array, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        """Return logits of the `wanted` tokens, or of all."""
        if not self.narrows:
            return self.computed(tokens, cache)
        with self._head.of(wanted, tokens.size):
            return self.computed(tokens, cache)

    @cached_property
    def _head(self) -> Head:
        return Head(self.model)

    def twin(self) -> "Network":
        """Return one of the same model, with ways of its own."""
        _ = self._head
        return copy(self)

    def own_caches(self) -> list[Any]:
        caches: list[Any] = make_prompt_cache(self.model)
        return caches

    def over_own(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        logits: mx.array = self.model(tokens, cache=cache)
        return logits


def flat(caches: Sequence[Any]) -> list[Any]:
    return [each for cache in caches for each in (cache.caches if type(cache) is CacheList else (cache,))]


def _computed(
    model: Any, shows_arrays: bool, layout: Sequence[int | None], tokens: mx.array, cache: Sequence[Any]
) -> mx.array:
    seen = viewed(cache) if shows_arrays else cache
    logits: mx.array = model(tokens, cache=_grouped(seen, layout) if any(layout) else seen)
    return logits


def _layout_of(caches: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(len(cache.caches) if type(cache) is CacheList else None for cache in caches)


def _grouped(caches: Sequence[Any], layout: Sequence[int | None]) -> list[Any]:
    left = iter(caches)
    return [next(left) if count is None else CacheList(*(next(left) for _ in range(count))) for count in layout]
