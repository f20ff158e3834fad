"""A server whose processes are stopped while the kernel goes on acknowledging for it."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from agentmem.errors import Unavailable
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.listening import Listener
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from cache_service.ledger import agents, turns
from cache_service.ledger.turns import Commit
from tests import postgres
from tests.cache_service.cluster import several
from tests.cache_service.cluster.several import node
from tests.cache_service.ledger.rows import ADA, EVE, NOW, count, tokens, turn
from tests.postgres import Server
from tests.postgres_pair import Pair, until

NEW = turn(1, commit_id=b"c" * 16)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres.serving() as server:
        yield server


@pytest.fixture
def settings(server: Server) -> Iterator[Settings]:
    yield Settings(server.conninfo, survives="nothing", writers=2, readers=1, silent_seconds=0.5, connect_seconds=2)
    with server.connect() as connection:
        connection.execute("DROP SCHEMA IF EXISTS agentmem CASCADE")


@pytest.fixture
def ledger(settings: Settings) -> Iterator[Postgres]:
    database = Postgres(settings)
    database.open()
    yield database
    database.close()


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


def add(connection: Connection) -> Commit:
    return turns.commit(connection, NEW, NOW)


def test_reads_and_writes_are_unavailable_and_give_their_threads_back(server: Server, ledger: Postgres) -> None:
    ledger.write_blocking(add)
    with frozen(server), ThreadPoolExecutor(5) as pool:
        calls: list[Future[object]] = [pool.submit(ledger.read_blocking, tokens) for _ in range(2)]
        calls += [pool.submit(ledger.write_blocking, turns.commit, turn(1, key=EVE), NOW) for _ in range(3)]
        for call in calls:  # more than there are threads
            with pytest.raises(Unavailable, match="cannot be"):
                call.result(60)
    assert ledger.read_blocking(tokens) == [1] and ledger.read_blocking(agents.find, EVE) is None
    ledger.write_blocking(turns.commit, turn(1, key=EVE), NOW)


def test_a_server_that_stops_in_a_transaction(server: Server, ledger: Postgres) -> None:
    """The server undoes the open transaction, and a repetition commits it."""
    begun, frozen_now, runs = threading.Event(), threading.Event(), list[Commit]()

    def work(connection: Connection) -> Commit:
        runs.append(add(connection))
        if len(runs) == 1:
            begun.set()
            assert frozen_now.wait(60)
            tokens(connection)
        return runs[-1]

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ledger.commit_blocking, work)
        assert begun.wait(60)
        with frozen(server):
            frozen_now.set()
            with pytest.raises(TimeoutError):
                call.result(4)
        assert not call.result(60).repeated and len(runs) == 2
    assert ledger.read_blocking(tokens) == [1] and ledger.read_blocking(count, "turns") == 1


@contextmanager
def stuck(pair: Pair, ledger: Postgres) -> Iterator[Future[Commit]]:
    with ThreadPoolExecutor(1) as pool, pair.cut_off():
        call = pool.submit(ledger.commit_blocking, add)
        pair.waiting()
        yield call


@pytest.mark.slow
def test_a_server_that_stops_in_a_commit(pair: Pair) -> None:
    settings = Settings(pair.primary.conninfo, silent_seconds=0.5, connect_seconds=2)
    ledger = Postgres(replace(settings, writers=1, readers=1, known_seconds=60))
    ledger.open()
    with stuck(pair, ledger) as call, frozen(pair.primary), pytest.raises(TimeoutError):
        call.result(4)
    assert call.result(60).repeated and pair.arrives()
    assert ledger.read_blocking(tokens) == [1] and ledger.read_blocking(count, "turns") == 1
    ledger.close()


@pytest.mark.slow
def test_a_commit_and_a_lock_are_waited_for_while_the_server_is_there(pair: Pair) -> None:
    ledger = Postgres(Settings(pair.primary.conninfo, silent_seconds=0.1, connect_seconds=2))
    ledger.open()
    with stuck(pair, ledger) as call:
        session, waited = pair.waiting(), "SELECT now() - query_start > '1500ms' FROM pg_stat_activity WHERE pid = %s"
        with pair.primary.connect() as connection:
            until(lambda: connection.execute(waited, (session,)).fetchone() == (True,))
        assert pair.waiting() == session and not call.done()
    assert not call.result(60).repeated
    with ThreadPoolExecutor(1) as pool, psycopg.connect(pair.primary.conninfo) as other:
        other.execute("SELECT 1 FROM agentmem.agents FOR UPDATE")
        change = pool.submit(ledger.write_blocking, agents.change, ADA, pinned=1)
        with pytest.raises(TimeoutError):
            change.result(1.5)
        other.rollback()
        assert change.result(60).pinned == 1
    ledger.close()


async def test_a_node_is_none_while_the_server_is_stopped_and_then_one_again(server: Server, data: Path) -> None:
    cluster = Settings(server.conninfo, "frozen", "a", "nothing")
    async with node(data, cluster, "a") as one:
        await one.sync()
        membership = one.membership
        with frozen(server):
            await several.until(lambda: "has not answered" in membership.problem())
        await several.until(lambda: not membership.problem())
        assert await one.sync()


def test_who_listens_listens_anew(server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was woken meanwhile it does not matter: who waits looks after each wait."""
    monkeypatch.setattr("cache_service.cluster.postgres.listening._ASK_SECONDS", 0.1)
    listener = Listener(settings)
    listener.wait(0)
    with frozen(server):
        while listener._connection is not None:
            listener.wait(0.2)
    until(lambda: listener.wait(0) or listener._connection)
    with server.connect() as connection, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(listener.wait, 60)
        until(lambda: connection.execute("NOTIFY agentmem") and waits.done())
    listener.close()


def test_who_has_many_files_open_waits_as_well(settings: Settings) -> None:
    """select() takes no descriptor above 1023, and a store may have 65,536."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 1200:
        pytest.skip(f"a process may have {most} files open here")
    with ExitStack() as held, ThreadPoolExecutor(1) as pool:
        while held.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        listener = Listener(settings)
        held.callback(listener.close)
        waits = pool.submit(listener.wait, 60)
        listener.wake()
        waits.result(60)
        assert listener._connection is not None and listener._connection.fileno() > 1023


@pytest.mark.slow
def test_a_server_without_room_for_a_question_is_not_silent() -> None:
    with postgres.serving({**postgres.DURABLE, "max_connections": "8"}) as server, ExitStack() as held:
        database = Postgres(Settings(server.conninfo, survives="nothing", silent_seconds=0.3))
        database.open()
        assert database.read_blocking(count, "agents") == 0  # over a session that stays
        with suppress(psycopg.OperationalError):
            while True:
                held.enter_context(server.connect())
        slow = "SELECT pg_sleep(1), 1"
        assert database.read_blocking(lambda connection: connection.execute(slow).fetchone()[1]) == 1
        held.close()
        database.close()
