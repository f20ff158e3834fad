"""What is sent to the server together: statements wait until somebody reads a result, or for the COMMIT."""

from __future__ import annotations

import psycopg
import pytest

from agentmem.errors import Unavailable
from cache_service.cluster.postgres.database import Postgres
from cache_service.connection import Connection
from tests.cache_service.cluster.postgres.test_transactions import commit
from tests.cache_service.ledger.rows import count, tokens, turn


def test_a_commit_is_three_round_trips(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """First what decides, with the lock in front; the segment, whose id the other rows name; these and the COMMIT."""
    base, sync, synced = commit(postgres, turn(1)).version, psycopg.Pipeline.sync, []
    monkeypatch.setattr(psycopg.Pipeline, "sync", lambda pipeline: synced.append(sync(pipeline)))
    made = commit(postgres, turn(2, base=base, keep=1, request_id="r", commit_id=b"c" * 16)).version
    assert len(synced) == 3 and made.number == 2
    assert postgres.read_blocking(tokens) == [1, 2]


def test_what_nobody_reads_fails_with_the_commit(postgres: Postgres) -> None:
    commit(postgres, turn(1))

    def work(connection: Connection) -> None:
        connection.execute("DELETE FROM turns")
        connection.execute("INSERT INTO agents SELECT * FROM agents")
        connection.execute("DELETE FROM snapshots")

    with pytest.raises(Unavailable, match="nothing was changed"):  # a conflict that does not end
        postgres.write_blocking(work)
    assert postgres.read_blocking(count, "turns") == 1


def test_a_read_that_writes_is_refused_even_where_nobody_reads_what_came(postgres: Postgres) -> None:
    commit(postgres, turn(1))

    def work(connection: Connection) -> None:
        connection.execute("DELETE FROM turns")

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        postgres.read_blocking(work)
    assert postgres.read_blocking(count, "turns") == 1
