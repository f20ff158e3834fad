"""Turns that come at once share passes: on an idle device short prompts wait a moment for turns that are planned."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_SECONDS, _LOOK_SECONDS = 0.1, 0.002
"""Longest wait, and time between two looks."""


class Gathering:
    """Counts turns that are planned, and has prompts wait for them.

    A pass that is launched at once has few prompts. All others wait for it, and they are planned more slowly, since
    launching takes the interpreter. 8 agents at once, SmolLM2 on two cores: the first had a pass to itself, a fifth of
    the time of all prompts. 32, Llama 3.1 8B on an H100: 60 of 400 ms.
    """

    def __init__(self) -> None:
        self.expected = 0
        """Turns that will be added in a moment. Any thread may read it."""
        self._until = 0.0

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Note that a turn is planned. Event loop only."""
        self.expected += 1
        try:
            yield
        finally:
            self.expected -= 1

    def waits(self, *, idle: bool) -> bool:
        """Return whether prompts on an `idle` device wait longer, after a part of the wait. Engine thread only."""
        if not (self.expected and idle):
            self._until = 0.0
            return False
        now = time.monotonic()
        self._until = self._until or now + _SECONDS
        if now >= self._until:
            return False
        time.sleep(_LOOK_SECONDS)
        return True
