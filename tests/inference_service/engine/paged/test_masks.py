"""Masks of a layer's cache: a token sees nothing of the future, and no more than the window."""

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.engine.codec import KVCodec
from inference_service.engine.paged.passes import ArrayKVCache, Pass, Piece
from inference_service.engine.paged.sequence import BlockTable, Sequence, WorkingKV


def cache_of(pieces: list[tuple[int, int]], window: int = 0) -> ArrayKVCache:
    """Return the cache of pieces of so many tokens after so many."""
    of = Pass([Piece(Sequence(BlockTable(256), length), n) for length, n in pieces])
    return ArrayKVCache(of, 0, KVCodec(), window, lambda sequence, layer: WorkingKV(window))


@pytest.mark.parametrize("window", [0, 48])
def test_short_pieces_need_none_or_a_causal_one(window: int) -> None:
    assert cache_of([(0, 1)], window).make_mask(1) is None
    assert cache_of([(40, 1)], window).make_mask(1) is None
    assert cache_of([(1000, 1)], window).make_mask(1) is None
    assert cache_of([(0, 5)], window).make_mask(5) == "causal"
    assert cache_of([(40, 8)], window).make_mask(8, window_size=window or None) == "causal"
    assert cache_of([(40, 8), (3, 1)], window).make_mask(1) is None, "of rows each is shown what it sees"


@pytest.mark.parametrize(("window", "other"), [(0, 4), (48, 47), (48, 49)])
def test_another_window_than_the_layers_is_refused(window: int, other: int) -> None:
    said = f"window is {window}, not {other}" if window else "has to give such layers a RotatingKVCache"
    for pieces in ([(10, 5)], [(10, 1), (3, 2)]):
        with pytest.raises(ValueError, match=said):
            cache_of(pieces, window).make_mask(5, window_size=other)


@given(length=st.integers(0, 300), n=st.integers(1, 200), window=st.sampled_from([0, 1, 16, 48]))
def test_each_token_sees_itself_and_the_window_before_it(length: int, n: int, window: int) -> None:
    mask = cache_of([(length, n)], window).make_mask(n, return_array=True)
    shown = n + (min(length, window - 1) if window else length)
    assert isinstance(mask, mx.array)
    assert mask.shape == (n, shown)
    begin = length + n - shown
    for row in {0, n // 2, n - 1}:
        at = length + row
        first = max(0, at - window + 1) if window else 0
        assert [begin + i for i, seen in enumerate(mask[row].tolist()) if seen] == list(range(first, at + 1))  # type: ignore[arg-type]


@given(
    pieces=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 20)), min_size=2, max_size=4),
    window=st.sampled_from([0, 1, 16]),
)
def test_rows_that_are_filled_up_see_their_own(pieces: list[tuple[int, int]], window: int) -> None:
    cache = cache_of(pieces, window)
    mask = cache.arrays_mask(1, None, return_array=False)
    assert mask is not None
    rows = [(length, n, i) for length, n in pieces for i in range(n)]
    assert mask.shape[:3] == (len(rows), 1, 1)
    for row, (length, n, i) in enumerate(rows):
        shown_from = length - (min(length, window - 1) if window else length)
        at = length + i
        first = max(0, at - window + 1) if window else 0
        found = [shown_from + k for k, seen in enumerate(mask[row, 0, 0].tolist()) if seen]  # type: ignore[arg-type]
        assert found == list(range(first, at + 1))
        assert n > i
