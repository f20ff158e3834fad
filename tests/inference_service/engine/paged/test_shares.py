"""Blocks of threads and the queries that they share."""

import pytest

from inference_service.engine.paged.shares import ROWS, Run, most_shares, shares


@pytest.mark.parametrize(("heads", "queries"), [(1, 700), (4, 33), (7, 30), (16, 1), (40, 3)])
def test_shares_have_each_row_once_and_no_more_than_a_block_takes(heads: int, queries: int) -> None:
    found = shares([Run(4, 9, queries)], heads)
    assert (found[:, :3] == [4, 9, queries]).all()
    rows = [row for *_, first, end in found.tolist() for row in range(first, end)]
    assert rows == list(range(heads * queries))
    assert max(end - first for *_, first, end in found.tolist()) <= ROWS
    assert len(found) <= most_shares(queries, heads, 1)
