"""Commits and their synchronous standby: a primary that streams to one, whose receiver is stopped at times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from agentmem.kv.ledger import Version
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.failures import OutcomeUnknown
from cache_service.cluster.postgres.settings import Settings, UnsafeServer
from cache_service.connection import Connection
from cache_service.ledger import agents, turns
from cache_service.ledger.turns import Commit, Turn
from tests.cache_service.ledger.rows import ADA, NOW, count, tokens, turn
from tests.postgres_pair import Pair, paired, until


@pytest.fixture(scope="module")
def kept_pair() -> Iterator[Pair]:
    with paired() as pair:
        yield pair


@pytest.fixture
def pair(kept_pair: Pair) -> Pair:
    with kept_pair.primary.connect() as connection:
        connection.execute("DROP SCHEMA IF EXISTS agentmem CASCADE")
    return kept_pair


@pytest.fixture
def lost_pair() -> Iterator[Pair]:
    with paired() as pair:
        yield pair


@contextmanager
def opened(settings: Settings) -> Iterator[Postgres]:
    database = Postgres(settings)
    database.open()
    try:
        yield database
    finally:
        database.close()


@pytest.fixture
def ledger(pair: Pair) -> Iterator[Postgres]:
    with opened(Settings(pair.primary.conninfo)) as database:
        with pair.primary.connect() as primary, pair.standby.connect() as standby:
            row = primary.execute("SELECT pg_current_wal_lsn()").fetchone()
            shown = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            until(lambda: standby.execute(shown, row).fetchone() == (True,))
        yield database


class Stuck(NamedTuple):
    """A call whose commit waits for the standby, in this session."""

    call: Future[Commit]
    session: int


@contextmanager
def stuck(pair: Pair, database: Postgres, work: Callable[[Connection], Commit]) -> Iterator[Stuck]:
    """A transaction, repeated until it is known, whose commit waits for the standby as long as the body runs."""
    with ThreadPoolExecutor(1) as pool, pair.cut_off():
        call = pool.submit(database.commit_blocking, work)
        yield Stuck(call, pair.waiting())


def committed(new: Turn) -> Callable[[Connection], Commit]:
    return lambda connection: turns.commit(connection, new, NOW)


NEW = turn(1, commit_id=b"c" * 16)


async def test_a_commit_goes_on_when_its_caller_is_cancelled(pair: Pair, ledger: Postgres) -> None:
    """It is visible only when the standby has it."""
    with pair.cut_off():
        commit = asyncio.create_task(ledger.write(turns.commit, turn(1), NOW))
        session = await asyncio.to_thread(pair.waiting)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert await asyncio.to_thread(pair.waiting) == session, "it waits on"
        assert await ledger.read(agents.find, ADA) is None
    assert await asyncio.to_thread(pair.arrives)
    while await ledger.read(agents.find, ADA) is None:
        await asyncio.sleep(0.01)


def test_a_commit_whose_wait_was_cancelled_is_unknown(pair: Pair, ledger: Postgres) -> None:
    """By an operator; the row is there, and might be lost with the server."""
    with ThreadPoolExecutor(1) as pool, pair.cut_off():
        call = pool.submit(ledger.write_blocking, committed(NEW))
        pair.cancel(pair.waiting())
        with pytest.raises(OutcomeUnknown, match="01000"):
            call.result(60)
        assert ledger.read_blocking(agents.find, ADA) is not None and not pair.on_standby()


def test_a_repetition_that_has_nothing_to_write_waits_too(pair: Pair, ledger: Postgres) -> None:
    def once(connection: Connection) -> Commit:
        found = connection.execute("SELECT uid, version, revision FROM agents").fetchone()
        return turns.commit(connection, NEW, NOW) if found is None else Commit(Version(*found), repeated=True)

    with stuck(pair, ledger, once) as commit:
        pair.cancel(commit.session)
        until(lambda: ledger.read_blocking(agents.find, ADA))
        pair.waiting()
        assert not commit.call.done() and not pair.on_standby()
    assert commit.call.result(60).repeated and pair.arrives()


def test_the_time_of_a_statement_ends_no_commit(pair: Pair) -> None:
    """It would end the wait for the standby, and leave the row visible."""
    with opened(replace(Settings(pair.primary.conninfo), statement_seconds=0.1)) as ledger:
        with stuck(pair, ledger, committed(NEW)) as commit, pair.primary.connect() as connection:
            waited = "SELECT now() - query_start > '300ms' FROM pg_stat_activity WHERE pid = %s"
            until(lambda: connection.execute(waited, (commit.session,)).fetchone() == (True,))
            assert pair.waiting() == commit.session and ledger.read_blocking(agents.find, ADA) is None
        assert not commit.call.result(60).repeated and pair.arrives()


@pytest.mark.slow
def test_a_server_that_is_killed_in_a_commit_keeps_the_turn_once(lost_pair: Pair) -> None:
    with opened(Settings(lost_pair.primary.conninfo)) as ledger:
        with stuck(lost_pair, ledger, committed(NEW)) as commit:
            lost_pair.primary.kill()
            lost_pair.primary.start()
        assert commit.call.result(60).repeated
        assert ledger.read_blocking(tokens) == [1] and ledger.read_blocking(count, "turns") == 1
        assert lost_pair.arrives()


@pytest.mark.slow
def test_the_standby_takes_over(lost_pair: Pair) -> None:
    """A commit that the standby does not have is lost with the primary, was never acknowledged, and is made there."""
    both = f"host={lost_pair.primary.root},{lost_pair.standby.root} user=agentmem dbname=postgres"
    with opened(replace(Settings(both), survives="crash")) as ledger:
        first = ledger.write_blocking(turns.commit, turn(1), NOW).version
        new = replace(NEW, base=first, keep_tokens=1)
        with stuck(lost_pair, ledger, committed(new)) as commit:
            lost_pair.fail_over()
            assert not commit.call.result(60).repeated
        assert ledger.read_blocking(tokens) == [1, 1]
    with pytest.raises(UnsafeServer, match="no synchronous standby is named"):
        Postgres(Settings(both)).open()
