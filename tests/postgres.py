"""Real PostgreSQL servers for tests: those of the benchmarks."""

from benchmarks.cluster.postgres import (
    DURABLE,
    NOBODY,
    NoServer,
    Server,
    directory,
    identity,
    programs,
    serving,
    standby,
)

__all__ = ["DURABLE", "NOBODY", "NoServer", "Server", "directory", "identity", "programs", "serving", "standby"]
