"""A PostgreSQL server and its synchronous standby for tests: those of the benchmarks."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.cluster import postgres_pair
from benchmarks.cluster.postgres import NoServer
from benchmarks.cluster.postgres_pair import WAITING, Pair, until

__all__ = ["WAITING", "Pair", "paired", "until"]


@contextmanager
def paired() -> Iterator[Pair]:
    """A pair. The test is skipped where there are no programs for it."""
    try:
        with postgres_pair.paired() as pair:
            yield pair
    except NoServer as problem:
        pytest.skip(str(problem))
