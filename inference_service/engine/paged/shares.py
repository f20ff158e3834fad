"""How thread blocks share queries that attend together. Pure."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

ROWS: Final = 128
"""Queries times heads, as in flash_prefill.cu."""


class Run(NamedTuple):
    """Adjacent queries of one sequence, its last tokens: row of its table, first query, number."""

    row: int
    first: int
    queries: int


def shares(runs: Iterable[Run], heads: int, count: int = 0) -> Any:
    """Return int32 [blocks, 5]: a run, first and end of its rows; `heads` per KV head."""
    found = []
    for run in runs:
        rows = heads * run.queries
        each = -(-rows // -(-rows // ROWS) // 16) * 16
        found += [(*run, at, min(at + each, rows)) for at in range(0, rows, each)]
    found += [(0, 0, 1, 0, 0)] * (count - len(found))
    return np.array(found, np.int32)


def most_shares(queries: int, heads: int, runs: int) -> int:
    return heads * queries // ROWS + runs
