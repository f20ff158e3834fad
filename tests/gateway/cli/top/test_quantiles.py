import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.exposition import LATENCY_BUCKETS
from gateway.cli.top.quantiles import histogram_quantile

BOUNDS = (*LATENCY_BUCKETS, math.inf)
quantiles = st.floats(0, 1)


def buckets(values: list[float]) -> dict[float, float]:
    return {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}


@pytest.mark.parametrize(
    ("quantile", "counts", "answer"),
    [
        (0.5, {1.0: 10, 2.0: 10, math.inf: 10}, 0.5),  # spread from 0 to 1
        (0.5, {1.0: 0, 2.0: 10, math.inf: 10}, 1.5),
        (0.9, {1.0: 5, 2.0: 10, math.inf: 10}, 1.8),
        (0.99, {1.0: 5, 2.0: 5, math.inf: 10}, 2.0),  # beyond the highest bound
        (0.0, {1.0: 0, 2.0: 4, math.inf: 4}, 1.0),
        (1.0, {1.0: 1, 2.0: 4, math.inf: 4}, 2.0),
        (0.5, {1.0: 0, math.inf: 0}, None),
        (0.5, {math.inf: 3}, None),
        (0.5, {1.0: 3}, None),
        (0.5, {}, None),
    ],
)
def test_as_prometheus_has_it(quantile: float, counts: dict[float, float], answer: float | None) -> None:
    assert histogram_quantile(quantile, counts) == (None if answer is None else pytest.approx(answer))


@given(st.lists(st.floats(0, 2000), min_size=1), quantiles)
def test_it_is_in_the_bucket_of_the_true_quantile(values: list[float], quantile: float) -> None:
    found = histogram_quantile(quantile, buckets(values))
    assert found is not None
    true = sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)]
    upper = next(bound for bound in BOUNDS if true <= bound)
    lower = max((bound for bound in BOUNDS if bound < upper), default=0.0)
    if math.isinf(upper):
        assert found == lower
    else:
        assert lower <= found <= upper * (1 + 1e-9)


@given(st.lists(st.floats(0, 2000), min_size=1), quantiles, quantiles)
def test_higher_quantiles_are_no_shorter(values: list[float], one: float, other: float) -> None:
    counts = buckets(values)
    low, high = (histogram_quantile(quantile, counts) for quantile in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert low <= high * (1 + 1e-9)


@given(st.dictionaries(st.sampled_from(BOUNDS), st.floats(0, 1e9)), quantiles)
def test_counts_that_were_read_while_they_grew_give_no_nonsense(counts: dict[float, float], quantile: float) -> None:
    found = histogram_quantile(quantile, counts)
    assert found is None or 0 <= found <= max(bound for bound in counts if math.isfinite(bound)) * (1 + 1e-9)
