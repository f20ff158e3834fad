"""A PostgreSQL server and its synchronous standby for tests: those of the benchmarks."""

from benchmarks.cluster.postgres_pair import WAITING, Pair, paired, until

__all__ = ["WAITING", "Pair", "paired", "until"]
