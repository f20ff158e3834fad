"""Long work on the engine's thread pauses for turns."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from agentmem.errors import Unavailable


class CalledOff(Unavailable):
    """Ends patient work."""


class _Others(threading.local):
    def __init__(self) -> None:
        self.run: Callable[[], bool] = lambda: False
        self.seconds = 0.0
        self.wanted: Callable[[], bool] | None = None


_others = _Others()


def pause_for(others: Callable[[], bool]) -> None:
    """`others` returns whether any turn goes on; it may raise to end the work."""
    _others.run = others


@contextmanager
def patient(wanted: Callable[[], bool]) -> Iterator[None]:
    """The block's work pauses until no turn runs, and raises CalledOff once not `wanted`."""
    _others.wanted = wanted
    try:
        yield
    finally:
        _others.wanted = None


def let_others_run() -> None:
    """Raises Unavailable if the thread is to end, and CalledOff."""
    began, wanted = time.monotonic(), _others.wanted
    _others.wanted = None  # the others' own pauses are not patient
    try:
        while _others.run() and wanted is not None and wanted():
            pass
    finally:
        _others.wanted = wanted
        _others.seconds += time.monotonic() - began
    if wanted is not None and not wanted():
        raise CalledOff("the work was called off")


def work_clock() -> float:
    """Return seconds of a clock that stands still in pauses."""
    return time.monotonic() - _others.seconds


def compute(parts: Iterable[Any]) -> None:
    for part in parts:
        mx.eval(part)
        let_others_run()
