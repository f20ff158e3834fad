"""Decode steps that are traced once and replayed: without the Python of a model's layers.

On a fast GPU a decode step of few rows takes as long as it takes to say what it is to compute. Of 10.0 ms for one row
of DeepSeek-V2-Lite on an H200, Python took 3.9 to build the graph, and MLX 6.1 to hand it to the GPU, which waited
(mlx-lm: 2.3 and 6.1). `mx.compile` replays a graph from its trace, and fuses what is elementwise; and K and V are
written in place by one kernel (`caches.traced`). In one run, nine layers of it with 1, 4 and 8 rows: eager 4.8, 5.2 and
6.2 ms; compiled 3.9, 4.2 and 5.6; in place, too, 2.6, 3.4 and 5.4; mlx-lm 3.5, 4.2 and 5.7 (another H200 host).

A trace holds for one number of rows and one capacity of the buffers, which grow by 256 tokens. It takes as long as some
steps, so only a shape that stays for a while is traced, and the last few are kept. Attention sees whole buffers, up to
255 tokens more than there are, so its path is the one for the capacity.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import mlx.core as mx

from inference_service.engine.caches.full import BatchQuantizedKVCache
from inference_service.engine.caches.sliding import BatchSlidingQuantizedKVCache
from inference_service.engine.caches.states import BatchStateCache
from inference_service.engine.caches.traced import Positions, TracedKVCache
from inference_service.engine.codec import KVCodec

_T = TypeVar("_T")

_STEPS_BEFORE: Final = 8
"""Steps of a shape before it is traced: about as many as a trace takes (17 ms of 27 layers, each step 3)."""
_TRACES: Final = 16
"""Shapes whose traces are kept: more groups of rows than run at once."""
_COUNTED: Final = 64
"""Shapes whose steps are counted."""

Model = Callable[[mx.array, Sequence[Any]], mx.array]
"""(tokens [rows, 1], caches) to logits [rows, 1, vocabulary]; the caches then hold the tokens."""
_Step = Callable[[mx.array, list[mx.array], list[list[mx.array]]], tuple[mx.array, list[list[mx.array]]]]
"""(tokens, numbers of each `Positions`, arrays of each cache) to logits, and arrays of each cache."""


@dataclass(frozen=True)
class _Layer:
    """What a trace takes for granted of one layer's cache: `positions` is the index of those that it stands at."""

    codec: KVCodec | None = None  # of a recurrent layer none
    window: int = 0
    capacity: int = 0
    positions: int = 0
    in_place: bool = False

    def traced(self, arrays: list[mx.array], positions: list[Positions]) -> TracedKVCache | BatchStateCache:
        """The cache within a step."""
        if self.codec is None:
            return BatchStateCache(arrays, [])
        return TracedKVCache(self.codec, self.window, positions[self.positions], arrays, in_place=self.in_place)


class CompiledSteps:
    """The traces of one model. Engine thread only."""

    def __init__(self, model: Model, *, steps_before: int = _STEPS_BEFORE, in_place: bool = False) -> None:
        """A shape is traced after `steps_before` steps of it. K and V are written `in_place`, where kernels do that."""
        self._model = model
        self._in_place = in_place
        self._steps_before = steps_before
        self._traces: OrderedDict[Any, _Step] = OrderedDict()
        self._steps: OrderedDict[Any, int] = OrderedDict()

    @property
    def compiled(self) -> bool:
        """Whether there is a trace."""
        return bool(self._traces)

    def step(self, tokens: mx.array, caches: Sequence[Any]) -> mx.array | None:
        """Logits [rows, 1, vocabulary] of the next token [rows, 1] of each row, lazily; the caches then hold it.

        None where the shape is new, or where a cache is of another kind. Then, and where this raises what the model
        raises when it is traced, the caches have no token more; but they have room for one, for which sliding layers
        may have dropped what it does not see.
        """
        positions: dict[tuple[int, ...], int] = {}
        layers = []
        for cache in caches:
            if isinstance(cache, BatchQuantizedKVCache | BatchSlidingQuantizedKVCache) and not cache.empty():
                cache.make_room()
                index = positions.setdefault(tuple(Positions.of(cache)), len(positions))
                layers.append(_Layer(cache.codec, cache.window, cache.buffers.capacity, index, self._in_place))
            elif isinstance(cache, BatchStateCache) and len(cache.arrays) == len(cache.cache):
                layers.append(_Layer())
            else:
                return None
        key = (tokens.shape[0], *layers)
        trace = self._traces.pop(key, None)
        if trace is None:
            steps = self._steps.pop(key, 0)
            if steps < self._steps_before:
                _keep(self._steps, key, steps + 1, _COUNTED)
                return None
            trace = self._traced(layers)
        arrays = [
            cache.buffers.in_place() if layer.in_place else cache.state
            for cache, layer in zip(caches, layers, strict=True)
        ]
        logits, written = trace(tokens, [mx.array(numbers) for numbers in positions], arrays)
        _keep(self._traces, key, trace, _TRACES)
        for cache, new in zip(caches, written, strict=True):
            cache.written(new)
        return logits

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


def _keep(latest: OrderedDict[Any, _T], key: Any, value: _T, most: int) -> None:
    latest[key] = value
    if len(latest) > most:
        latest.popitem(last=False)
