"""Transactions on a real server: who wins, what is run again, what waits how long, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from agentmem.errors import Aborted, NotFound, Unavailable
from agentmem.validation import NEVER, AgentKey
from cache_service.cluster.postgres.database import Postgres
from cache_service.connection import Connection
from cache_service.ledger import agents, branches, object_references, segments, snapshots, turns
from cache_service.ledger.agents import State
from cache_service.ledger.clock import Moment
from cache_service.ledger.turns import Commit, Turn
from cache_service.ledger.workflow_records import Put, put
from cache_service.ledger.workflow_records import read as read_record
from cache_service.tiers import eviction
from cache_service.tiers.eviction import LastUse
from tests.cache_service.ledger.rows import (
    ADA,
    EVE,
    NOW,
    OBJECTS,
    TABLES,
    charged,
    count,
    counted,
    tokens,
    turn,
    upload,
)

WRITERS = 4


def commit(postgres: Postgres, new: Turn) -> Commit:
    return postgres.write_blocking(turns.commit, new, NOW)


class Meeting:
    """Work that goes on when all writers have come so far; those that run again do not wait."""

    def __init__(self, writers: int = WRITERS) -> None:
        self._barrier = threading.Barrier(writers)
        self.runs = 0

    def __call__(self, connection: Connection, new: Turn, *, before: bool) -> Commit:
        self.runs += 1
        if before:
            self._wait()
        made = turns.commit(connection, new, NOW)
        if not before:
            self._wait()
        return made

    def _wait(self) -> None:
        if self.runs <= self._barrier.parties:
            self._barrier.wait(60)


def raced(postgres: Postgres, writers: list[Turn], *, before: bool) -> tuple[list[Turn], int]:
    """Return which of several writers that meet in transactions win, and how often their work ran."""
    meeting, won = Meeting(len(writers)), []
    with ThreadPoolExecutor(len(writers)) as pool:
        calls = [pool.submit(postgres.write_blocking, meeting, each, before=before) for each in writers]
        for each, call in zip(writers, calls, strict=True):
            try:
                call.result(60)
            except Aborted:
                continue
            won.append(each)
    return won, meeting.runs


def test_of_writers_of_one_agent_exactly_one_wins(postgres: Postgres) -> None:
    base = commit(postgres, turn(0)).version
    for number in range(1, 6):
        writers = [turn(10 * number + writer, base=base, keep=number) for writer in range(WRITERS)]
        (winner,), _ = raced(postgres, writers, before=True)
        state = postgres.read_blocking(agents.existing, ADA)
        assert (state.version.number, state.head.tokens) == (number + 1, number + 1)
        assert postgres.read_blocking(tokens)[-1:] == winner.content.token_ids.tolist()
        base = state.version
    assert postgres.read_blocking(charged) == postgres.read_blocking(counted)


def test_of_those_who_create_one_agent_exactly_one_does(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have seen that there is none before the first of them inserts it."""
    asked_state, seen = agents.asked_state, threading.Barrier(WRITERS)

    def answered_together(asked: Callable[[], Any]) -> State | None:
        found = asked_state(asked)
        if found is None:
            seen.wait(60)
        return found

    monkeypatch.setattr(agents, "asked_state", answered_together)
    won, runs = raced(postgres, [turn(writer) for writer in range(WRITERS)], before=True)
    assert len(won) == 1 and runs > WRITERS, "those who met the first one's row ran again"
    assert postgres.read_blocking(count, "segments") == postgres.read_blocking(count, "turns") == 1


def test_writers_of_different_agents_do_not_wait_for_each_other(postgres: Postgres) -> None:
    """All have written, and none has committed, in one namespace: no row is everybody's."""
    writers = [turn(writer, key=ADA._replace(agent_id=str(writer))) for writer in range(WRITERS)]
    won, runs = raced(postgres, writers, before=False)
    assert len(won) == WRITERS
    assert postgres.read_blocking(charged) == postgres.read_blocking(counted)
    assert runs >= WRITERS


def overlapping(postgres: Postgres, first: Callable[[Connection], Any], second: Callable[[Connection], Any]) -> Any:
    """Run `first`, and commit it when `second`, begun later, has done its work or waits; what `second` returns."""
    done, begun = threading.Event(), threading.Event()
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    def held(connection: Connection) -> None:
        first(connection)
        begun.set()
        while not done.is_set() and connection.execute(waiting).fetchone() is None:
            connection.execute("SELECT pg_stat_clear_snapshot()")

    def later(connection: Connection) -> Any:
        try:
            return second(connection)
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(postgres.write_blocking, held)
        assert begun.wait(60)
        try:
            return postgres.write_blocking(later)
        finally:
            call.result(60)


def test_who_leaves_a_shared_ledger_last_erases_it(postgres: Postgres) -> None:
    """Two agents are deleted at once, the second while the first one's head still seems to stand there."""
    commit(postgres, turn(1, 2))
    postgres.write_blocking(upload, ADA, OBJECTS)
    postgres.write_blocking(branches.fork, ADA, EVE, None, None, NEVER, NOW)
    overlapping(postgres, lambda c: agents.delete(c, ADA), lambda c: agents.delete(c, EVE))
    assert {table: postgres.read_blocking(count, table) for table in TABLES} == dict.fromkeys(TABLES, 0)


@pytest.mark.parametrize("fork_first", [True, False])
def test_a_fork_of_a_turn_that_only_another_agent_keeps_has_all_of_it(postgres: Postgres, fork_first: bool) -> None:
    """While that one is deleted: the segment is cut for who is left, or forked before."""
    commit(postgres, turn(1, 2, 3))
    postgres.write_blocking(branches.fork, ADA, EVE, None, None, NEVER, NOW)
    postgres.write_blocking(branches.trim, ADA, 1, None, NOW)
    postgres.write_blocking(snapshots.delete, ADA, "auto-1")
    bob = ADA._replace(agent_id="bob")

    def fork(connection: Connection) -> None:
        with suppress(NotFound):  # it came too late
            branches.fork(connection, ADA, bob, 1, None, NEVER, NOW)

    def delete(connection: Connection) -> None:
        agents.delete(connection, EVE)

    overlapping(postgres, *((fork, delete) if fork_first else (delete, fork)))
    state = postgres.read_blocking(agents.find, bob)
    assert state is not None or not fork_first
    if state is not None:
        content = postgres.read_blocking(segments.read, state.head)
        assert content.token_ids.tolist() == [1, 2, 3][: state.head.tokens]
    assert postgres.read_blocking(tokens) == [1]


def test_who_was_second_sees_what_the_first_has_done(postgres: Postgres) -> None:
    base = commit(postgres, turn(1, 2)).version
    with pytest.raises(Aborted):
        overlapping(
            postgres,
            lambda c: branches.trim(c, ADA, 1, None, NOW),
            lambda c: turns.commit(c, turn(3, base=base, keep=2), NOW),
        )
    assert postgres.read_blocking(tokens) == [1]
    postgres.write_blocking(put, Put("n", "w", 0, b"", b"p", []))
    with pytest.raises(Aborted):
        overlapping(
            postgres,
            lambda c: put(c, Put("n", "w", 1, b"", b"q", [])),
            lambda c: put(c, Put("n", "w", 1, b"", b"r", [b"e"])),
        )
    found = postgres.read_blocking(read_record, "n", "w", 0)
    assert found is not None and (found.record.version, found.payload, found.events) == (2, b"q", [])


def test_an_agent_that_another_node_uses_meanwhile_is_not_idle(postgres: Postgres) -> None:
    """Both were idle for long enough; of one a turn is under way that the other node has not seen committed."""
    base = commit(postgres, turn(1)).version
    commit(postgres, turn(1, key=EVE))
    for key in (ADA, EVE):
        postgres.write_blocking(agents.change, key, ttl=None, delete_after=10)
    later = Moment(100, 100)
    expired = overlapping(
        postgres,
        lambda c: turns.commit(c, turn(2, base=base, keep=1), later),
        lambda c: eviction.expire(c, later.used, []),
    )
    assert expired.erased == 1
    assert postgres.read_blocking(tokens) == [1, 2]
    assert postgres.read_blocking(agents.find, EVE) is None


def test_who_refers_to_an_object_that_is_being_dropped_has_no_reference(postgres: Postgres) -> None:
    for key in (ADA, EVE):
        commit(postgres, turn(1, 2, key=key))
    postgres.write_blocking(upload, ADA, OBJECTS[:1])
    eve = postgres.read_blocking(agents.existing, EVE).version
    overlapping(postgres, lambda c: agents.delete(c, ADA), lambda c: object_references.publish(c, eve, {OBJECTS[0]}))
    assert postgres.read_blocking(count, "objects") == postgres.read_blocking(count, "object_refs") == 0


def test_a_deadlock_is_run_again(postgres: Postgres) -> None:
    """Each holds one agent and asks for the other's. Who is run again may be as fast as to meet the other once more."""
    for key in (ADA, EVE):
        commit(postgres, turn(1, key=key))
    barrier, runs = threading.Barrier(2), []

    def both(connection: Connection, one: AgentKey, other: AgentKey) -> None:
        agents.existing(connection, one)
        runs.append(one)
        if len(runs) <= 2:
            barrier.wait(60)
        snapshots.create(connection, other, f"by {one.agent_id}", NOW)

    with ThreadPoolExecutor(2) as pool:
        for call in [pool.submit(postgres.write_blocking, both, *pair) for pair in ((ADA, EVE), (EVE, ADA))]:
            call.result(60)
    assert len(runs) >= 3
    assert postgres.read_blocking(count, "snapshots") == 2


def test_a_reader_sees_one_state_and_waits_for_no_writer(postgres: Postgres) -> None:
    base = commit(postgres, turn(1)).version

    def read(connection: Connection) -> list[list[int]]:
        found = [tokens(connection)]
        commit(postgres, turn(2, base=base, keep=1))
        return [*found, tokens(connection)]

    assert postgres.read_blocking(read) == [[1], [1]]
    assert postgres.read_blocking(tokens) == [1, 2]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        postgres.read_blocking(agents.delete, ADA)


def test_work_that_hides_an_error_is_not_taken_for_committed(postgres: Postgres) -> None:
    def work(connection: Connection) -> None:
        turns.commit(connection, turn(1), NOW)
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT nothing").fetchone()

    with pytest.raises(psycopg.errors.UndefinedColumn):
        postgres.write_blocking(work)
    assert postgres.read_blocking(agents.find, ADA) is None


def test_notes_of_use_are_kept_until_they_are_committed(postgres: Postgres) -> None:
    uid, last_use, runs = commit(postgres, turn(1)).version.uid, LastUse(), []

    def work(connection: Connection, failures: int) -> None:
        last_use.flush_agents(connection)
        runs.append(1)
        if len(runs) <= failures:
            connection.execute("INSERT INTO agents SELECT * FROM agents")  # a conflict, as others cause it

    def used(connection: Connection) -> int:
        return int(connection.execute("SELECT used FROM agents").fetchone()[0])

    last_use.note(uid, [], 10**18)
    with pytest.raises(Unavailable):
        postgres.write_blocking(work, 100)
    assert postgres.read_blocking(used) == NOW.used and last_use.any_agents()
    runs.clear()
    postgres.write_blocking(work, 1)
    assert len(runs) == 2
    assert postgres.read_blocking(used) == 10**18 and not last_use.any_agents()
