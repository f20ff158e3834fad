"""A chunk of a prompt on its way through the layers. Engine thread.

A chunk can stop between two layers and go on later. So a new request waits for some layers of another turn's chunk, not
for the whole chunk. A stopped chunk holds one layer's output, [tokens, hidden], besides its caches.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import mlx.core as mx

from inference_service.engine.checkpoints import keeps_checkpoints
from inference_service.engine.device import on_cpu
from inference_service.engine.geometry import Caches

_SECONDS = 0.025
"""Of computing before it is asked whether to stop: after less, a fast backend would idle for more than a percent."""

_THREAD_CLOCK = 6
"""Of Linux's clocks: a thread's, of the time that it ran. The thread's number stands above it, inverted."""


class PrefillChunk:
    """`rows` of tokens behind what the caches hold, which count the chunk from the start. Engine thread only.

    `position` is that of the first token, of the longest row; `tokens` are those of all rows, padding included.
    `tokens_per_second` is what chunks did so far (0: unknown): it says how many layers to compute at once. With
    `wants_logits` there will be `logits` [rows, 1, vocabulary] behind the last token, lazily; what is beyond the last
    layer's KV is computed with them only.
    """

    def __init__(
        self,
        model: Any,
        caches: Caches,
        rows: Sequence[Sequence[int]],
        position: int,
        tokens_per_second: float,
        *,
        wants_logits: bool = False,
    ) -> None:
        self.position = position
        self.tokens = sum(map(len, rows))
        self.began = time.monotonic()
        self.seconds = 0.0
        """Of computing, without the time in which it was stopped; on a CPU as if no other process were there."""
        expected = self.tokens / tokens_per_second if tokens_per_second else float("inf")
        self._at_once = max(1, int(len(caches) * _SECONDS / expected))
        # Lazy: nothing is computed before it is asked for.
        logits = model(mx.array([list(row) for row in rows]), cache=caches)
        self.logits: mx.array | None = logits[:, -1:] if wants_logits else None
        self._left = list(caches)

    def advance(self, stop: Callable[[], bool]) -> bool:
        """Compute some layers, and again until `stop` says so; whether all are done. Raises what the model raises."""
        while self._left:
            now, self._left = self._left[: self._at_once], self._left[self._at_once :]
            self.seconds += _seconds_of([cache.state for cache in now])
            if self._left and stop():
                return False
        return True


def _seconds_of(arrays: Sequence[Any]) -> float:
    """Compute; return how long that takes where no other process needs the processor.

    On a CPU that is the processor time of the thread that used most: others share its work or wait for it, and all are
    MLX's or the BLAS's. By the clock two busy processes on two cores made a prompt take seven times as long, and so its
    chunks the smallest, each of which dequantizes all of the context again.
    """
    before, started = _processor_seconds() if on_cpu() else {}, time.monotonic()
    mx.eval(arrays)
    seconds = time.monotonic() - started
    used = [after - before.get(thread, 0.0) for thread, after in _processor_seconds().items()] if before else []
    return min(seconds, max(used, default=seconds))


def _processor_seconds() -> dict[str, float]:
    """What each thread of this process has used; on other systems than Linux, all of them together."""
    if sys.platform != "linux":
        return {"": time.process_time()}
    found: dict[str, float] = {}
    with suppress(OSError):  # There is no /proc.
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # It has ended.
                found[thread] = time.clock_gettime(~int(thread) << 3 | _THREAD_CLOCK)
    return found


def next_stop(caches: Caches, checkpoints: Iterable[int], end: int) -> int:
    """Where the next chunk must end at the latest: the first checkpoint behind what the caches hold, or `end`.

    A model of full attention alone has nothing to capture, and its chunks are not cut.
    """
    if not keeps_checkpoints(caches):
        return end
    return min((at for at in checkpoints if caches[0].offset < at < end), default=end)
