"""Real PostgreSQL servers for tests: those of the benchmarks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.cluster import postgres
from benchmarks.cluster.postgres import DURABLE, NOBODY, NoServer, Server, directory, identity, programs, standby

__all__ = ["DURABLE", "NOBODY", "NoServer", "Server", "directory", "identity", "programs", "serving", "standby"]


@contextmanager
def serving(*arguments: Any, **named: Any) -> Iterator[Server]:
    """A server. The test is skipped where there are no programs for it."""
    try:
        with postgres.serving(*arguments, **named) as server:
            yield server
    except NoServer as problem:
        pytest.skip(str(problem))
