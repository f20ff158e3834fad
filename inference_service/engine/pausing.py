"""Long work on the engine's thread, as a load's proofs, pauses for turns."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx


class _Others(threading.local):
    """This thread's other work; none on threads other than the engine's."""

    def __init__(self) -> None:
        self.run: Callable[[], None] = lambda: None
        self.seconds = 0.0


_others = _Others()


def pause_for(others: Callable[[], None]) -> None:
    """Make pauses on this thread call `others`, which may raise to end the work."""
    _others.run = others


def let_others_run() -> None:
    """Raises Unavailable if the thread is to end."""
    began = time.monotonic()
    _others.run()
    _others.seconds += time.monotonic() - began


def work_clock() -> float:
    """Return the seconds of a clock that stands still while this thread pauses."""
    return time.monotonic() - _others.seconds


def compute(parts: Iterable[Any]) -> None:
    """Compute lazy arrays, with a pause after each part."""
    for part in parts:
        mx.eval(part)
        let_others_run()
