"""Which rows decode together."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inference_service.engine.caches.buffers import STEP

from inference_service.engine.scheduling import most_batch_bytes, split

KIB, GIB = 1 << 10, 1 << 30

rows = st.lists(st.integers(1, 40_000), max_size=9)
token_bytes = st.integers(1, 200_000)
weight_bytes = st.integers(0, 10 * GIB)


def cost(lengths: list[int], groups: tuple[tuple[int, ...], ...], per_token: int, weights: int) -> int:
    return sum(weights + len(group) * max(lengths[row] for row in group) * per_token for group in groups)


def batch_bytes(lengths: list[int], per_token: int, weights: int) -> int:
    """What the padded batches of `split`'s groups take at these lengths; buffers grow by steps."""
    groups = split(lengths, per_token, weights)
    return sum(len(group) * -(-lengths[group[-1]] // STEP) * STEP for group in groups) * per_token


@given(lengths=rows, per_token=token_bytes, weights=weight_bytes)
def test_every_row_is_in_one_group_and_groups_are_by_length(lengths: list[int], per_token: int, weights: int) -> None:
    groups = split(lengths, per_token, weights)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    assert all(groups)
    order = [row for group in groups for row in group]
    assert order == sorted(order, key=lambda row: (lengths[row], row))


@given(lengths=rows, per_token=token_bytes, weights=weight_bytes)
def test_never_worse_than_together_or_alone(lengths: list[int], per_token: int, weights: int) -> None:
    best = cost(lengths, split(lengths, per_token, weights), per_token, weights)
    together = (tuple(range(len(lengths))),) if lengths else ()
    assert best <= cost(lengths, together, per_token, weights)
    assert best <= cost(lengths, tuple((row,) for row in range(len(lengths))), per_token, weights)


@given(lengths=st.lists(st.integers(1, 4_000), min_size=1, max_size=5), weights=st.integers(0, 10_000), data=st.data())
def test_no_split_at_all_is_better(lengths: list[int], weights: int, data: st.DataObject) -> None:
    """Not even one that is not by length."""
    labels = data.draw(st.lists(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths)))
    other = tuple(tuple(row for row in range(len(lengths)) if labels[row] == label) for label in set(labels))
    assert cost(lengths, split(lengths, 1, weights), 1, weights) <= cost(lengths, other, 1, weights)


@given(lengths=rows, per_token=token_bytes, weights=weight_bytes, steps=st.integers(0, 10_000))
def test_rows_that_grow_alike_need_no_new_split(lengths: list[int], per_token: int, weights: int, steps: int) -> None:
    grown = [length + steps for length in lengths]
    groups = split(lengths, per_token, weights)
    assert cost(grown, groups, per_token, weights) == cost(grown, split(grown, per_token, weights), per_token, weights)


@given(lengths=rows, per_token=token_bytes, weights=weight_bytes, data=st.data())
def test_the_most_holds_for_all_shorter_rows_and_fewer(
    lengths: list[int], per_token: int, weights: int, data: st.DataObject
) -> None:
    most = most_batch_bytes(lengths, per_token, weights)
    now = [data.draw(st.integers(1, length)) for length in lengths if data.draw(st.booleans())]
    assert batch_bytes(now, per_token, weights) <= most
    assert batch_bytes(lengths, per_token, weights) <= most
    if lengths:
        assert most <= len(lengths) * (max(lengths) + 255) * per_token, "one batch of all"


def test_equal_rows_stay_together_however_small_the_model() -> None:
    assert split([5, 5, 5], 10**6, 1) == ((0, 1, 2),)


def test_nothing_is_nothing() -> None:
    assert split([], 1, 1) == ()
    assert batch_bytes([], 1, 1) == most_batch_bytes([], 1, 1) == 0


@pytest.mark.parametrize(
    ("weights", "groups", "gib"),
    [(2 * GIB, ((1, 2, 3, 4, 5, 6, 7), (0,)), 0.81), (5 * GIB, ((1, 2, 3, 4, 5, 6, 7, 0),), 4.5)],
)
def test_one_long_row_among_short_ones(weights: int, groups: tuple[tuple[int, ...], ...], gib: float) -> None:
    """16K with seven of 1K, at the 36 KiB per token of an 8B Llama: padding would cost 3.7 GiB a step."""
    lengths = [16 * 1024, *[1024] * 7]
    assert split(lengths, 36 * KIB, weights) == groups
    assert batch_bytes(lengths, 36 * KIB, weights) / GIB == pytest.approx(gib, abs=0.01)


def test_shorter_rows_can_take_more() -> None:
    """While the long row is at 4K, padding is cheaper than the weights; so what batches take now is no bound."""
    short = [1024] * 7
    now, then = (batch_bytes([long, *short], 36 * KIB, GIB) for long in (5 * 1024, 16 * 1024))
    assert now > then
    assert now <= most_batch_bytes([16 * 1024, *short], 36 * KIB, GIB)


@given(lengths=rows)
def test_more_groups_for_smaller_models(lengths: list[int]) -> None:
    counts = [len(split(lengths, 1000, weights)) for weights in (0, 10**5, 10**6, 10**7, 10**9, 10**12)]
    assert all(few <= many for many, few in pairwise(counts))
