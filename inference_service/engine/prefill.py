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

from inference_service.engine.device import on_cpu
from inference_service.engine.geometry import Geometry

_SECONDS = 0.025
"""Of computing before it is asked whether to stop: after less, a fast backend would idle for more than a percent."""

_THREAD_CLOCK = 6
"""Of Linux's clocks: a thread's, of the time that it ran. The thread's number stands above it, inverted."""


class PrefillChunk:
    """`tokens` tokens of a prompt from `position` on, computed layer by layer. Engine thread only.

    `tokens_per_second` is what chunks did so far (0: unknown): it says how many layers to compute at once. `last` is
    computed with the last layer. What is beyond that layer's KV is not.
    """

    def __init__(
        self, caches: Sequence[Any], last: Sequence[mx.array], position: int, tokens: int, tokens_per_second: float
    ) -> None:
        self.position = position
        self.tokens = tokens
        self.began = time.monotonic()
        self.seconds = 0.0
        """Of computing, without the time in which it was stopped; on a CPU as if no other process were there."""
        expected = self.tokens / tokens_per_second if tokens_per_second else float("inf")
        self._at_once = max(1, int(len(caches) * _SECONDS / expected))
        self._last = list(last)
        self._left = list(caches)

    def advance(self, stop: Callable[[], bool]) -> bool:
        """Compute some layers, and again until `stop` says so; whether all are done. Raises what the model raises."""
        while self._left:
            now, self._left = self._left[: self._at_once], self._left[self._at_once :]
            self.seconds += _seconds_of([cache.state for cache in now] + ([] if self._left else self._last))
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


def next_stop(geometry: Geometry, position: int, checkpoints: Iterable[int], end: int) -> int:
    """Where the next chunk must end at the latest: the first checkpoint behind `position`, or `end`.

    A model of full attention alone has nothing to capture, and its chunks are not cut.
    """
    if geometry.resumes_anywhere:
        return end
    return min((at for at in checkpoints if position < at < end), default=end)
