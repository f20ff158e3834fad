"""Transactions: what is sent together, and what is given up, cancelled, too slow, or cut off with its connection."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from agentmem.errors import Aborted, Unavailable
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.failures import OutcomeUnknown
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from cache_service.ledger import agents, turns
from cache_service.ledger.turns import Commit
from cache_service.ledger.workflow_records import Put, put, read
from tests import postgres as servers
from tests.cache_service.cluster.postgres.test_transactions import commit
from tests.cache_service.ledger.rows import ADA, EVE, NOW, count, tokens, turn
from tests.postgres import Server

_SLOW_SYNC = "options='-c commit_delay=100000 -c commit_siblings=0'"
"""Each COMMIT takes a tenth of a second to reach the disk."""
_COMMITTING = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'agentmem' AND (query, state) = ('COMMIT', 'active')"
)


def test_a_read_that_was_given_up_before_it_began_is_not_made(postgres_settings: Settings) -> None:
    """Where reads take long, those of a page of metrics would come faster than they go."""
    postgres = Postgres(replace(postgres_settings, readers=1))
    postgres.open()
    begun, go_on, made = threading.Event(), threading.Event(), list[Connection]()

    def slow(_: Connection) -> None:
        begun.set()
        go_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(postgres.read_blocking, slow)
        assert begun.wait(60)
        with pytest.raises(TimeoutError):
            postgres.read_within(0.01, made.append)
        go_on.set()
        first.result(60)
    assert postgres.read_blocking(count, "agents") == 0 and made == []
    postgres.close()


def test_a_statement_that_takes_too_long_is_unavailable(postgres_settings: Settings) -> None:
    postgres = Postgres(replace(postgres_settings, statement_seconds=0.2))
    postgres.open()
    commit(postgres, turn(1))
    with pytest.raises(Unavailable, match="too long"):
        postgres.write_blocking(lambda connection: connection.execute("SELECT pg_sleep(60)"))
    with psycopg.connect(postgres_settings.conninfo) as other:  # another node holds the agent
        other.execute(f'SELECT 1 FROM "{postgres_settings.schema}".agents FOR UPDATE'.encode())
        with pytest.raises(Unavailable, match="too long"):
            postgres.write_blocking(agents.change, ADA, pinned=1)
    assert postgres.write_blocking(agents.change, ADA, pinned=1).pinned == 1
    postgres.close()


def test_a_node_that_hangs_in_a_transaction_holds_no_agent(postgres_settings: Settings) -> None:
    """The server ends its session, and what it had not committed runs again."""
    postgres = Postgres(replace(postgres_settings, idle_seconds=0.2))
    postgres.open()
    base, runs = commit(postgres, turn(1)).version, []

    def hang(connection: Connection) -> Commit:
        made = turns.commit(connection, turn(2, base=base, keep=1), NOW)
        runs.append(made)
        if len(runs) == 1:
            begun.set()
            ended.wait(60)
        return made

    begun, ended = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(postgres.write_blocking, hang)
        assert begun.wait(60)
        won = commit(postgres, turn(3, base=base, keep=1)).version  # waits until the server has ended the other's
        ended.set()
        with pytest.raises(Aborted):
            hung.result(60)
    assert postgres.read_blocking(agents.existing, ADA).version == won and len(runs) == 1
    postgres.close()


def test_a_connection_that_was_lost_is_made_again(postgres: Postgres, postgres_server: Server) -> None:
    commit(postgres, turn(1))
    with postgres_server.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agentmem'")
    assert postgres.read_blocking(tokens) == [1]
    commit(postgres, turn(1, key=EVE))


@pytest.mark.slow
def test_what_was_committed_when_its_session_ended_is_not_done_again() -> None:
    """Else a run's record is ABORTED by itself. It is in doubt: that it was done is not said to the end."""
    with servers.serving(servers.DURABLE) as server, server.connect() as other, ThreadPoolExecutor(1) as pool:
        database = Postgres(Settings(f"{server.conninfo} {_SLOW_SYNC}", survives="nothing", writers=1))
        database.open()
        call = pool.submit(database.write_blocking, put, Put("n", "w", 0, b"", b"p", []))
        while (session := other.execute(_COMMITTING).fetchone()) is None and not call.done():
            time.sleep(0.001)
        time.sleep(0.02)  # into the sync
        other.execute("SELECT pg_terminate_backend(%s)", session)
        with pytest.raises(OutcomeUnknown, match="lost during a commit"):
            call.result(60)
        found = database.read_blocking(read, "n", "w", 0)
        assert found is not None and found.record.version == 1
        database.close()


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
