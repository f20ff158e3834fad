"""A chunk of a prompt that can stop between two layers: a new request waits for some layers only. Engine thread."""

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
"""Between checks for a stop; with less a fast backend would idle."""

_THREAD_CLOCK = 6
"""Linux's, of a thread; the inverted thread ID is in the bits above."""


class PrefillChunk:
    """`last` is computed with the last layer."""

    def __init__(
        self, caches: Sequence[Any], last: Sequence[mx.array], position: int, tokens: int, tokens_per_second: float
    ) -> None:
        self.position = position
        self.tokens = tokens
        self.began = time.monotonic()
        self.seconds = 0.0
        """On a CPU, as if there were no other process."""
        expected = self.tokens / tokens_per_second if tokens_per_second else float("inf")
        self._at_once = max(1, int(len(caches) * _SECONDS / expected))
        self._last = list(last)
        self._left = list(caches)

    def advance(self, stop: Callable[[], bool]) -> bool:
        while self._left:
            now, self._left = self._left[: self._at_once], self._left[self._at_once :]
            self.seconds += _seconds_of([cache.state for cache in now] + ([] if self._left else self._last))
            if self._left and stop():
                return False
        return True


def _seconds_of(arrays: Sequence[Any]) -> float:
    """On a CPU, that is the busiest thread's processor time: by the clock, chunks beside busy processes were the
    smallest.
    """
    before, started = _processor_seconds() if on_cpu() else {}, time.monotonic()
    mx.eval(arrays)
    seconds = time.monotonic() - started
    used = [after - before.get(thread, 0.0) for thread, after in _processor_seconds().items()] if before else []
    return min(seconds, max(used, default=seconds))


def _processor_seconds() -> dict[str, float]:
    if sys.platform != "linux":
        return {"": time.process_time()}
    found: dict[str, float] = {}
    with suppress(OSError):  # There is no /proc.
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # It has ended.
                found[thread] = time.clock_gettime(~int(thread) << 3 | _THREAD_CLOCK)
    return found


def next_stop(geometry: Geometry, position: int, checkpoints: Iterable[int], end: int) -> int:
    """Return the first checkpoint after `position`, or `end`."""
    if geometry.resumes_anywhere:
        return end
    return min((at for at in checkpoints if position < at < end), default=end)
