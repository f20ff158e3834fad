"""Quantiles of a histogram, as Prometheus' histogram_quantile has them."""

import math
from collections.abc import Mapping


def histogram_quantile(quantile: float, buckets: Mapping[float, float]) -> float | None:
    """The quantile of what was observed, in the unit of the bounds; None where nothing was.

    `buckets` are counts of observations by upper bound, +Inf among the bounds, each with those of the lower bounds.
    Within a bucket observations are taken to be spread evenly, below the lowest bound from 0 on. Beyond the highest
    finite bound that bound is the answer: the truth is at least as much.
    """
    bounds = sorted(buckets)
    if not bounds or not math.isinf(bounds[-1]):
        return None
    counts: list[float] = []
    for bound in bounds:  # read one by one while they grow, so that a later one may be a little behind
        counts.append(max(buckets[bound], counts[-1] if counts else 0.0))
    if counts[-1] <= 0 or len(bounds) == 1:
        return None
    rank = quantile * counts[-1]
    at = next(index for index, count in enumerate(counts) if count >= rank and count > 0)
    if at == len(bounds) - 1:
        return bounds[-2]
    lower, below = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
    return lower + (bounds[at] - lower) * max(0.0, rank - below) / (counts[at] - below)
