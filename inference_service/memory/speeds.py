"""Whether KV that is elsewhere is fetched or computed: by the speeds of both, as they were measured. Pure.

A fetch takes some time whatever its size, and more with each byte; of prefill a token takes some time, and more with
each token before it. Each is a line, fitted by least squares to what was measured, in which newer measurements weigh
more. Nothing is assumed: what was never measured is fetched, and so measured.

Of a run of files that are elsewhere all or none are fetched. With k of its n blocks fetched a turn waits for
a + b k + C(n) - C(k), where C, the prefill of the first blocks, grows faster the longer the context is: so this is
concave in k for k > 0, and least at an end, and at k -> 0 there is still a, which fetching none saves. Where what is
here divides what is elsewhere into several runs, each of their beginnings is a place to stop at: nothing behind it is
of use.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

PROBE_SECONDS: Final = 60.0
"""What is elsewhere is fetched at least this often, where it is wanted, so that a speed that has changed is found."""

LEAST_TOKENS: Final = 128
"""Smaller chunks of a prompt are bound by other things than larger ones."""

_FETCHES: Final = 8.0
"""After so many more a fetch weighs half as much."""
_FETCH_SECONDS: Final = 20.0
"""After so long it does, too: networks change."""
_PREFILL_TOKENS: Final = 32_768.0
"""After so many more tokens a chunk does."""


class Source(StrEnum):
    """Where KV can be, other than here."""

    NODE = "node"
    OBJECTS = "objects"


class Line:
    """y = intercept + slope x with neither below 0, as points say of which older ones weigh less.

    Where all points have about one x, `through_origin` decides between a line from 0 and a level one.
    """

    def __init__(self, *, through_origin: bool) -> None:
        self._through_origin = through_origin
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        """Whether there was a point."""
        return self._weight > 0

    def fade(self, halvings: float) -> None:
        """Let all points so far weigh less, by so many halvings."""
        factor = 0.5**halvings
        self._weight, self._x, self._y = factor * self._weight, factor * self._x, factor * self._y
        self._xx, self._xy = factor * self._xx, factor * self._xy

    def add(self, x: float, y: float, weight: float = 1.0) -> None:
        """Take a point into account."""
        self._weight += weight
        self._x += weight * x
        self._y += weight * y
        self._xx += weight * x * x
        self._xy += weight * x * y

    @property
    def parts(self) -> tuple[float, float]:
        """Intercept and slope; call it only where there was a point."""
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        if variance > 1e-4 * x * x:
            slope = (self._xy / self._weight - x * y) / variance
            if slope < 0:
                return y, 0.0
            if slope * x <= y:
                return y - slope * x, slope
            return 0.0, self._xy / self._xx
        return (0.0, y / x) if self._through_origin and x > 0 else (y, 0.0)


class Option(NamedTuple):
    """What a turn could start from: bytes to fetch, by source, for its first `tokens`."""

    tokens: int
    fetched_bytes: Mapping[Source, int]


class _Fetches:
    """What is known of one source."""

    def __init__(self) -> None:
        self.line = Line(through_origin=True)
        self.begun = 0.0
        """When something was asked of it last."""
        self._measured = 0.0

    def seconds(self, size: int) -> float:
        at_once, for_each = self.line.parts
        return at_once + for_each * size

    def measured(self, size: int, seconds: float, now: float) -> None:
        self.line.fade(1 / _FETCHES + max(0.0, now - self._measured) / _FETCH_SECONDS)
        self.line.add(size, seconds)
        self._measured = now


class Speeds:
    """Measures and decides, for all models of a worker. Not for several threads. Times are of one monotonic clock.

    `measures` False: everything is fetched, whatever was measured.
    """

    def __init__(self, *, measures: bool = True) -> None:
        self._measures = measures
        self._fetches = {source: _Fetches() for source in Source}
        self._prefill: dict[str, Line] = {}

    def computed(self, model_id: str, position: int, tokens: int, seconds: float) -> None:
        """A chunk of a prompt was computed behind `position` tokens, by itself. Small ones say nothing."""
        if tokens < LEAST_TOKENS:
            return
        line = self._prefill.setdefault(model_id, Line(through_origin=False))
        line.fade(tokens / _PREFILL_TOKENS)
        line.add(position + tokens / 2, seconds / tokens, tokens)

    def begin_fetch(self, source: Source, now: float) -> None:
        """Something is asked of a source."""
        self._fetches[source].begun = now

    def end_fetch(self, source: Source, asked: int, came: int, seconds: float, now: float) -> None:
        """Of `asked` bytes so many came, after so long. Where none did, only that it took long is news."""
        fetches = self._fetches[source]
        if came:
            fetches.measured(came, seconds, now)
        elif not fetches.line.known or seconds > fetches.seconds(asked):
            fetches.measured(asked, seconds, now)

    def prefill_seconds(self, model_id: str, first: int, end: int) -> float | None:
        """How long it would take to compute a prompt's tokens from `first` up to `end`; None if that is not known."""
        line = self._prefill.get(model_id)
        if line is None:
            return None
        at_once, for_each = line.parts
        return (end - first) * (at_once + for_each * (first + end) / 2)

    def fetch_seconds(self, sizes: Mapping[Source, int]) -> float | None:
        """How long it would take to fetch so many bytes of each source; None if that is not known."""
        fetches = [(self._fetches[source], size) for source, size in sizes.items() if size]
        if not all(each.line.known for each, _ in fetches):
            return None
        return sum(each.seconds(size) for each, size in fetches)

    def choose(self, model_id: str, options: Sequence[Option], now: float) -> int:
        """The index of the option with which a turn begins to generate first. The first option has most tokens; it is
        taken where a speed that matters is unknown, and where a source was not asked for PROBE_SECONDS.
        """
        most = options[0]
        if not self._measures or len(options) == 1:
            return 0
        seconds: list[float] = []
        for option in options:
            fetching = self.fetch_seconds(option.fetched_bytes)
            computing = self.prefill_seconds(model_id, option.tokens, most.tokens)
            if fetching is None or computing is None:
                return 0
            seconds.append(fetching + computing)
        best = min(range(len(options)), key=seconds.__getitem__)
        left = [
            source for source, size in most.fetched_bytes.items() if size > options[best].fetched_bytes.get(source, 0)
        ]
        if any(now - self._fetches[source].begun >= PROBE_SECONDS for source in left):
            return 0
        return best
