"""A proxy that breaks connections at a byte of an answer."""

from __future__ import annotations

from typing import Final

from benchmarks.proxy import Proxy, Target

_PREFACE: Final = b"PRI * HTTP/2.0"
_PREFACE_BYTES: Final = 24
_FRAME_HEADER_BYTES: Final = 9
_HEADERS: Final = 1


class CuttingProxy(Proxy):
    def __init__(self, target: Target) -> None:
        self.answered = 0
        self._cut_at: int | None = None
        self._cut_in: int | None = None
        super().__init__(target)

    def cut_after(self, count: int) -> None:
        """Break the connections once, after so many more bytes of answers."""
        with self._lock:
            self._cut_at = self.answered + count

    def cut_answer_after(self, count: int) -> None:
        """Break once, after so many bytes of the next call's answer, without what HTTP/2 says of an earlier call."""
        with self._lock:
            self._cut_in = count

    def _asked(self, question: bytes) -> int:
        with self._lock:
            if self._cut_in is not None and _begins_a_call(question):
                self._cut_at, self._cut_in = self.answered + self._cut_in, None
        return len(question)

    def _answered(self, answer: bytes) -> int:
        """Return how many of its bytes arrive."""
        with self._lock:
            size = len(answer)
            if self._cut_at is not None and self.answered + size > self._cut_at:
                size, self._cut_at = self._cut_at - self.answered, None
            self.answered += size
        return size


def _begins_a_call(data: bytes) -> bool:
    at = _PREFACE_BYTES if data.startswith(_PREFACE) else 0
    while at + _FRAME_HEADER_BYTES <= len(data):
        if data[at + 3] == _HEADERS:
            return True
        at += _FRAME_HEADER_BYTES + int.from_bytes(data[at : at + 3], "big")
    return False
