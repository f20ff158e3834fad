"""Fetch or compute KV that is elsewhere, by measured speeds. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

PROBE_SECONDS: Final = 60.0

LEAST_TOKENS: Final = 128
"""Smaller chunks are bound by other things."""

_FETCHES: Final = 8.0
"""After so many more a measurement weighs half."""
_FETCH_SECONDS: Final = 20.0
"""Networks change."""
_PREFILL_TOKENS: Final = 32_768.0
"""As _FETCHES."""


class Source(StrEnum):
    NODE = "node"
    OBJECTS = "objects"


class _Rate:
    """Newer measurements weigh more."""

    def __init__(self) -> None:
        self._amount = self._seconds = 0.0
        self.asked = 0.0
        self.measured = 0.0

    def add(self, amount: int, seconds: float, halvings: float) -> None:
        factor = 0.5**halvings
        self._amount = factor * self._amount + amount
        self._seconds = factor * self._seconds + seconds

    def seconds(self, amount: int) -> float | None:
        return amount * self._seconds / self._amount if self._amount else None


class Speeds:
    """For all models of a worker. One thread and clock."""

    def __init__(self) -> None:
        self._fetches = {source: _Rate() for source in Source}
        self._prefill: dict[str, _Rate] = {}

    def computed(self, model_id: str, tokens: int, seconds: float) -> None:
        if tokens >= LEAST_TOKENS:
            self._prefill.setdefault(model_id, _Rate()).add(tokens, seconds, tokens / _PREFILL_TOKENS)

    def begin_fetch(self, source: Source, now: float) -> None:
        self._fetches[source].asked = now

    def end_fetch(self, source: Source, asked: int, came: int, seconds: float, now: float) -> None:
        rate = self._fetches[source]
        expected = rate.seconds(asked)
        if came or expected is None or seconds > expected:
            rate.add(came or asked, seconds, 1 / _FETCHES + max(0.0, now - rate.measured) / _FETCH_SECONDS)
            rate.measured = now

    def prefill_seconds(self, model_id: str, tokens: int) -> float | None:
        return self._prefill[model_id].seconds(tokens) if model_id in self._prefill else None

    def fetch_seconds(self, sizes: Mapping[Source, int]) -> float | None:
        seconds = [self._fetches[source].seconds(size) for source, size in sizes.items()]
        return None if None in seconds else sum(each for each in seconds if each is not None)

    def fetches(self, model_id: str, tokens: int, sizes: Mapping[Source, int], now: float) -> bool:
        """Fetch also if a speed is unknown, or a source was not asked for PROBE_SECONDS."""
        fetching, computing = self.fetch_seconds(sizes), self.prefill_seconds(model_id, tokens)
        probes = any(now - self._fetches[source].asked >= PROBE_SECONDS for source in sizes)
        return probes or fetching is None or computing is None or fetching <= computing
