"""Both engines do the same: one sequence of calls on each, the same answers, errors and rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import FileName
from agentmem.kv.ledger import NO_VERSION, Version
from agentmem.validation import AgentKey, IdleTimes
from cache_service.cluster.postgres.database import Postgres
from cache_service.connection import Connection
from cache_service.ledger import agents, branches, finding, history, snapshots, turns, workflow_records
from cache_service.ledger.agents import Conversation
from cache_service.ledger.clock import Moment
from cache_service.ledger.database import Database
from cache_service.ledger.workflow_records import Put
from tests.cache_service.ledger.conftest import Engine
from tests.cache_service.ledger.rows import ADA, EVE, OBJECTS, TABLES, charged, counted, damaged, turn, upload
from tests.full_matrix import FULL

OTHERS = ("uid", "revision", "source_uid", "forked_uid", "node", "xid", "made")
"""Columns that no two ledgers have the same, or one engine has alone."""
KEYS = st.sampled_from([ADA, EVE, AgentKey("n", "ada", "M"), AgentKey("n", "b\0", "m")])
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=4)
NAMES = st.sampled_from(["s", "S", "auto-2"])
SMALL = st.integers(0, 6)
HASHES = [number.to_bytes(16, "big") for number in range(7)]


def rows(connection: Connection, table: str) -> list[dict[str, Any]]:
    drawn = (*OTHERS, *(("id",) if table in ("kv_changes", "object_deletions") else ()))
    found = connection.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in found.description]
    known = [{name: value for name, value in zip(names, row, strict=True) if name not in drawn} for row in found]
    return sorted(known, key=repr)


def _last_segment(connection: Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'segments'").fetchone()
    return 0 if row is None else int(row[0])


def without_random(value: Any) -> Any:
    """An answer, but for uids and revisions."""
    if isinstance(value, Version):
        return value.number
    if isinstance(value, tuple | list):
        return [without_random(each) for each in value]
    return bool(value) if isinstance(value, bool | int) and value in (0, 1) else repr(value)


class Alike(RuleBasedStateMachine):
    """Two ledgers. `postgres` is set by who runs it, and emptied before each sequence."""

    postgres: Postgres

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.sqlite = Database(self.folder / "store.db")
        self.sqlite.open()
        tables = ", ".join({*TABLES, "kv_changes", "object_deletions", "namespaces"})
        self.postgres.write_blocking(lambda c: c.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))
        self.time = 0

    def both(self, call: Callable[[Engine], Any]) -> None:
        answers = []
        for engine in (self.sqlite, self.postgres):
            try:
                answers.append(without_random(call(engine)))
            except AgentmemError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        last = self.sqlite.read_blocking(_last_segment)  # a commit that is refused has drawn an id on PostgreSQL
        level = "SELECT setval('segments_id_seq', greatest(?, 1), ? > 0)"
        self.postgres.write_blocking(lambda c: c.execute(level, (last, last)))

    def now(self) -> Moment:
        self.time += 1
        return Moment(self.time, self.time)

    @rule(
        key=KEYS,
        tokens=TOKENS,
        keep=SMALL,
        back=st.booleans(),
        name=st.sampled_from(["", "r", "q"]),
        messages=SMALL,
        stale=st.booleans(),
        commit_id=st.sampled_from([b"", b"c" * 16]),
    )
    def commit(
        self,
        key: AgentKey,
        tokens: list[int],
        keep: int,
        back: bool,
        name: str,
        messages: int,
        stale: bool,
        commit_id: bytes,
    ) -> None:
        now = self.now()

        def call(engine: Engine) -> Any:
            state = engine.read_blocking(agents.find, key)
            base = NO_VERSION if state is None else state.version
            if stale and base.number:
                base = base._replace(number=base.number - 1)
            kept = min(keep, state.head.tokens) if state and not back else keep if state else 0
            conversation = Conversation("", messages, HASHES[messages] if messages else b"")
            new = turn(
                *tokens, key=key, base=base, keep=kept, request_id=name, conversation=conversation, commit_id=commit_id
            )
            return engine.write_blocking(turns.commit, new, now)

        self.both(call)

    @initialize()
    def begin(self) -> None:
        for key in (ADA, EVE):
            for token in range(4):
                self.commit(key, [token, token], 6, False, str(token), token, False, b"")
        self.put(0, b"p", [])

    @rule(key=KEYS, name=st.sampled_from(["s", "S"]))
    def snapshot(self, key: AgentKey, name: str) -> None:
        now = self.now()
        self.both(lambda engine: engine.write_blocking(snapshots.create, key, name, now))

    @rule(key=KEYS, name=NAMES)
    def restore(self, key: AgentKey, name: str) -> None:
        now = self.now()
        self.both(lambda engine: engine.write_blocking(branches.restore, key, name, now))

    @rule(key=KEYS, name=NAMES)
    def forget(self, key: AgentKey, name: str) -> None:
        self.both(lambda engine: engine.write_blocking(snapshots.delete, key, name))

    @rule(key=KEYS, new=KEYS, version=st.none() | SMALL, keep=st.none() | SMALL)
    def fork(self, key: AgentKey, new: AgentKey, version: int | None, keep: int | None) -> None:
        now = self.now()
        times = IdleTimes(5, None)
        self.both(lambda engine: engine.write_blocking(branches.fork, key, new, version, keep, times, now))

    @rule(key=KEYS, keep=SMALL, version=st.none() | SMALL)
    def trim(self, key: AgentKey, keep: int, version: int | None) -> None:
        now = self.now()
        self.both(lambda engine: engine.write_blocking(branches.trim, key, keep, version, now))

    @rule(key=KEYS, names=st.lists(st.sampled_from(OBJECTS), unique=True))
    def publish(self, key: AgentKey, names: list[FileName]) -> None:
        self.both(lambda engine: engine.write_blocking(upload, key, names))

    @rule(key=KEYS, everywhere=st.booleans())
    def delete(self, key: AgentKey, everywhere: bool) -> None:
        gone = key._replace(model_id="") if everywhere else key
        self.both(lambda engine: engine.write_blocking(agents.delete, gone))

    @rule(off=SMALL, payload=st.none() | st.binary(max_size=3), events=st.lists(st.binary(max_size=2), max_size=2))
    def put(self, off: int, payload: bytes | None, events: list[bytes]) -> None:
        def call(engine: Engine) -> int:
            found = engine.read_blocking(workflow_records.find, "n", "w")
            version = (found.version if found else 0) + (off == 6)
            return engine.write_blocking(workflow_records.put, Put("n", "w", version, b"s", payload, events))

        self.both(call)

    @rule(key=KEYS, version=SMALL, messages=SMALL)
    def look(self, key: AgentKey, version: int, messages: int) -> None:
        self.both(lambda engine: engine.read_blocking(turns.open_agent, key, NO_VERSION, "r"))
        self.both(lambda engine: engine.read_blocking(history.page, key, version, 3))
        self.both(lambda engine: engine.read_blocking(agents.page, AgentKey("n", "", ""), ("ada", "M"), 9))
        self.both(lambda engine: engine.read_blocking(finding.find, "n", "m", HASHES[1 : messages + 1], ""))
        self.both(lambda engine: engine.read_blocking(finding.of_turn, "n", "m", "r"))
        self.both(lambda engine: engine.read_blocking(workflow_records.read, "n", "w", version))

    def teardown(self) -> None:
        try:
            for table in (*TABLES, "kv_changes", "object_deletions"):
                found = [engine.read_blocking(rows, table) for engine in (self.sqlite, self.postgres)]
                assert found[0] == found[1], table
            for engine in (self.sqlite, self.postgres):
                assert engine.read_blocking(damaged) == []
                assert engine.read_blocking(charged) == engine.read_blocking(counted)
        finally:
            self.sqlite.close()
            shutil.rmtree(self.folder)


@pytest.mark.slow
def test_both_engines_do_the_same(postgres: Postgres) -> None:
    Alike.postgres = postgres
    run_state_machine_as_test(Alike, settings=settings(max_examples=200 if FULL else 30, stateful_step_count=30))
