"""Windows: the state of the sliding layers at chosen positions of a prompt.

Prefill passes each position once, and what sliding layers have dropped behind it cannot be had again without a prefill
from the beginning. So what may be resumed from later is copied while the caches stand exactly there. Engine thread.
"""

from collections.abc import Iterable, Sequence

import mlx.core as mx

from inference_service.engine.caches import KVBuffers, Quantized, SlidingQuantizedKVCache
from inference_service.engine.geometry import Caches


def next_stop(caches: Caches, checkpoints: Iterable[int], end: int) -> int:
    """Where the next chunk must end at the latest: the first checkpoint behind what the caches hold, or `end`.

    A model without sliding layers has nothing to capture, and its chunks are not cut.
    """
    if not _sliding(caches):
        return end
    return min((at for at in checkpoints if caches[0].offset < at < end), default=end)


def captured(caches: Caches) -> list[KVBuffers]:
    """The last min(position, window) tokens of each sliding layer, in the order of the layers.

    The arrays are evaluated, and private: they share no memory with the caches, nor with anything else. They are
    [1, kv_heads, tokens, width].
    """
    windows = [_copied(cache.buffers, min(cache.offset, cache.window)) for cache in _sliding(caches)]
    mx.eval([buffers.arrays for buffers in windows])
    return windows


def _sliding(caches: Caches) -> Sequence[SlidingQuantizedKVCache]:
    return [cache for cache in caches if isinstance(cache, SlidingQuantizedKVCache)]


def _copied(buffers: KVBuffers, tokens: int) -> KVBuffers:
    at = mx.arange(buffers.filled - tokens, buffers.filled)

    # A gather, because mx.contiguous of a slice that is contiguous by itself (one KV head) shares its memory.
    def copied(part: Quantized) -> Quantized:
        return part.map(lambda array: mx.contiguous(mx.take(array, at, axis=2)))

    return buffers.map(copied, tokens)
