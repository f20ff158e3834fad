"""Decode steps that are traced once and replayed: without the Python of a model's layers.

On a fast GPU a decode step of few rows takes as long as it takes to say what it is to compute. Of 10.0 ms for one row
of DeepSeek-V2-Lite on an H200, Python took 3.9 to build the graph, and MLX 6.1 to hand it to the GPU, which waited
(mlx-lm: 2.3 and 6.1). `mx.compile` replays a graph from its trace, and fuses what is elementwise.

A trace holds for one number of rows and one capacity of the buffers, which grow by 256 tokens. It takes as long as some
steps, so only a shape that stays for a while is traced, and the last few are kept.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.caches.full import BatchQuantizedKVCache
from inference_service.engine.caches.sliding import BatchSlidingQuantizedKVCache
from inference_service.engine.caches.states import BatchStateCache
from inference_service.engine.caches.traced import Positions, TracedKVCache
from inference_service.engine.codec import KVCodec

_STEPS_BEFORE: Final = 8
"""Steps of a shape before it is traced."""
_KEPT: Final = 8
"""Shapes whose traces, or counts of steps, are kept."""

Model = Callable[[mx.array, Sequence[Any]], mx.array]
"""(tokens [rows, 1], caches) to logits [rows, 1, vocabulary]; the caches then hold the tokens."""
_Step = Callable[[mx.array, list[mx.array], list[list[mx.array]]], tuple[mx.array, list[list[mx.array]]]]
"""(tokens, numbers of each kind's `Positions`, arrays of each cache) to logits, and arrays of each cache."""


@dataclass(frozen=True)
class _Layer:
    """What a trace takes for granted of one layer's cache: `kind` is which positions it stands at."""

    codec: KVCodec | None = None  # of a recurrent layer none
    window: int = 0
    capacity: int = 0
    kind: int = 0

    def traced(self, arrays: list[mx.array], positions: list[Positions]) -> TracedKVCache | BatchStateCache:
        """The cache within a step."""
        if self.codec is None:
            return BatchStateCache(arrays, [])
        return TracedKVCache(self.codec, self.window, positions[self.kind], arrays)


class CompiledSteps:
    """The traces of one model. Engine thread only."""

    def __init__(self, model: Model, *, steps_before: int = _STEPS_BEFORE) -> None:
        """A shape is traced after `steps_before` steps of it."""
        self._model = model
        self._steps_before = steps_before
        self._known: OrderedDict[Any, int | _Step] = OrderedDict()

    @property
    def compiled(self) -> bool:
        """Whether there is a trace."""
        return any(callable(known) for known in self._known.values())

    def step(self, tokens: mx.array, caches: Sequence[Any]) -> mx.array | None:
        """Logits [rows, 1, vocabulary] of the next token [rows, 1] of each row, lazily; the caches then hold it.

        None where the shape is new, or where a cache is of another kind: nothing is changed then, but there may be
        more room. Raises what the model raises when it is traced, and the caches are as they were.
        """
        kinds: dict[tuple[int, ...], int] = {}
        layers = []
        for cache in caches:
            if isinstance(cache, BatchQuantizedKVCache | BatchSlidingQuantizedKVCache) and not cache.empty():
                cache.make_room()
                kind = kinds.setdefault(tuple(Positions.of(cache)), len(kinds))
                layers.append(_Layer(cache.codec, cache.window, cache.buffers.capacity, kind))
            elif isinstance(cache, BatchStateCache) and len(cache.arrays) == len(cache.cache):
                layers.append(_Layer())
            else:
                return None
        key = (tokens.shape[0], *layers)
        known = self._known.pop(key, 0)
        if isinstance(known, int):
            if known < self._steps_before:
                self._keep(key, known + 1)
                return None
            known = self._traced(layers)
        arrays = [cache.state for cache in caches]
        logits, written = known(tokens, [mx.array(numbers) for numbers in kinds], arrays)
        self._keep(key, known)
        for cache, new in zip(caches, written, strict=True):
            cache.written(new)
        return logits

    def _keep(self, key: Any, what: int | _Step) -> None:
        self._known[key] = what
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _traced(self, layers: list[_Layer]) -> _Step:
        model = self._model  # A trace that knew `self` would be a cycle, which keeps weights until it is collected.

        def step(
            tokens: mx.array, numbers: list[mx.array], arrays: list[list[mx.array]]
        ) -> tuple[mx.array, list[list[mx.array]]]:
            positions = [Positions(each) for each in numbers]
            caches = [layer.traced(own, positions) for layer, own in zip(layers, arrays, strict=True)]
            logits = model(tokens, caches)
            return logits, [cache.state for cache in caches]

        compiled: _Step = mx.compile(step)
        return compiled
