"""Divergences of tokens, counted by size, for quantiles of drawn samples.

Sizes have eight bins to an octave, so that a quantile is right to 5 %. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.intervals import DRAWS, Interval

_PER_OCTAVE: Final = 8
_LEAST: Final = -24
"""The logarithm (base 2) of the first bin's upper end: smaller ones are rounding."""
BINS: Final = 8 * 30
"""Up to 64 nats."""


def counted(divergences: npt.NDArray[np.floating]) -> dict[int, int]:
    with np.errstate(divide="ignore"):
        places = np.ceil((np.log2(np.maximum(divergences, 0.0)) - _LEAST) * _PER_OCTAVE)
    places = np.nan_to_num(places, nan=BINS)
    bins, counts = np.unique(np.clip(places, 0, BINS - 1).astype(int), return_counts=True)
    return dict(zip(bins.tolist(), counts.tolist(), strict=True))


def quantile(samples: Sequence[Mapping[int, int]], share: float) -> Interval:
    """Return a quantile over all samples, in nats, by a bootstrap over samples."""
    counts = np.zeros((len(samples), BINS))
    for row, sample in zip(counts, samples, strict=True):
        row[list(sample)] = list(sample.values())
    chosen = np.random.default_rng(0).integers(len(samples), size=(DRAWS // 10, len(samples)))
    drawn = [_quantile(counts[each].sum(axis=0), share) for each in chosen]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(_quantile(counts.sum(axis=0), share), float(low), float(high))


def _quantile(counts: npt.NDArray[np.floating], share: float) -> float:
    below = np.cumsum(counts)
    wanted = share * below[-1]
    place = int(np.searchsorted(below, wanted))
    within = (wanted - (below[place] - counts[place])) / max(counts[place], 1)
    return float(2.0 ** (_LEAST + (place - 1 + within) / _PER_OCTAVE))
