"""Long work on the engine's thread pauses for turns."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx


class _Others(threading.local):
    def __init__(self) -> None:
        self.run: Callable[[], None] = lambda: None
        self.seconds = 0.0


_others = _Others()


def pause_for(others: Callable[[], None]) -> None:
    """`others` may raise to end the work."""
    _others.run = others


def let_others_run() -> None:
    """Raises Unavailable if the thread is to end."""
    began = time.monotonic()
    _others.run()
    _others.seconds += time.monotonic() - began


def work_clock() -> float:
    """Return seconds of a clock that stands still in pauses."""
    return time.monotonic() - _others.seconds


def compute(parts: Iterable[Any]) -> None:
    for part in parts:
        mx.eval(part)
        let_others_run()
