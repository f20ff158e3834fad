"""How blocks of threads share the queries of a pass that attend together, those of short prompts. Pure."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

ROWS: Final = 128
"""Rows of queries of a block of threads, one for each query of each head, as flash_prefill.cu has them."""


class Run(NamedTuple):
    """Neighbouring queries of one sequence, its last tokens: the row of its table, the first query, their number."""

    row: int
    first: int
    queries: int


def shares(runs: Iterable[Run], heads: int, count: int = 0) -> Any:
    """Return how blocks of threads share the queries of some runs, int32 [blocks, 5]: a run, and of its rows the first
    and the one behind the last. `heads` of the queries have one KV head. At least `count`, of which some have no rows.
    """
    found = []
    for run in runs:
        rows = heads * run.queries
        each = -(-rows // -(-rows // ROWS) // 16) * 16
        found += [(*run, at, min(at + each, rows)) for at in range(0, rows, each)]
    found += [(0, 0, 1, 0, 0)] * (count - len(found))
    return np.array(found, np.int32)


def most_shares(queries: int, heads: int, runs: int) -> int:
    """Return the most that `shares` of so many queries in so many runs has."""
    return heads * queries // ROWS + runs
