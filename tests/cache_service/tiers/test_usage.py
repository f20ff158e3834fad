"""What namespaces take is right after any order of operations, and after a directory was taken over."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import NO_VERSION, Ledger, TurnPlace
from agentmem.validation import NEVER, AgentKey
from cache_service.files import holding, references, warm_database
from cache_service.files.references import FileRow
from cache_service.ledger import agents, branches, kv_changes, schema, snapshots, turns, workflow_records
from cache_service.ledger.agents import Conversation, State
from cache_service.ledger.clock import Moment
from cache_service.ledger.segments import EMPTY
from cache_service.ledger.workflow_records import Put
from cache_service.tiers import eviction, quotas
from tests.full_matrix import FULL

NOW = Moment(0, 0)
KEYS = st.builds(AgentKey, st.sampled_from("nm"), st.sampled_from("ab"), st.just("model"))
TOKENS = st.integers(0, 6)
NAMES = st.sampled_from("xyz")
BLOCKS = st.sets(st.integers(0, 5))
CONTENTS = st.tuples(
    st.binary(max_size=9), st.none() | st.binary(max_size=9), st.lists(st.binary(min_size=1, max_size=9), max_size=3)
)


def connect(prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    """A database as `database` opens it, in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA recursive_triggers = ON")
    prepare(connection)
    return connection


def file(key: AgentKey, number: int) -> FileName:
    """A file's name; each namespace has its own."""
    return FileName(FileKind(1 + number % 2), f"{key.namespace}{number}".encode())


def commit(connection: sqlite3.Connection, key: AgentKey, keep: int, count: int, record: bytes = b"") -> None:
    state = agents.find(connection, key) or State(NO_VERSION, EMPTY)
    numbers = np.arange(1, count + 1, dtype=np.uint32)
    part = Ledger(numbers, b"x" * count, numbers, "t", (TurnPlace(count, min(1, count)),))
    keep = min(keep, state.head.tokens)
    turns.commit(connection, turns.Turn(key, state.version, keep, part, "", b"", record, Conversation("", 0, b"")), NOW)


def publish(
    ledger: sqlite3.Connection, warm: sqlite3.Connection, key: AgentKey, has: set[int], wants: set[int], size: int
) -> None:
    for number in has:
        row = FileRow(file(key, number), 0, 1, size, b"", key=key, fingerprint="f")
        references.add(warm, row, 0)
    version = agents.existing(ledger, key).version
    standing = kv_changes.standing(ledger, key, version)
    holding.publish(warm, key, version, {file(key, number) for number in wants}, standing)


class UsageMachine(RuleBasedStateMachine):
    """Two agents in each of two namespaces. What the store refuses changes nothing."""

    @initialize()
    def open(self) -> None:
        self.connection = connect(schema.migrate)
        self.warm = connect(warm_database.prepare)

    def write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """A transaction of store.db, which warm.db follows."""
        self.connection.execute("BEGIN")
        try:
            work(self.connection)
            self.connection.execute("COMMIT")
        except AgentmemError:
            self.connection.execute("ROLLBACK")
        states = kv_changes.after(self.connection, holding.followed(self.warm))
        self.write_warm(lambda c: holding.follow(c, states))

    def write_warm(self, work: Callable[[sqlite3.Connection], object]) -> None:
        self.warm.execute("BEGIN")
        work(self.warm)
        self.warm.execute("COMMIT")

    @rule(key=KEYS, keep=TOKENS, count=TOKENS, record=st.binary(max_size=9))
    def commit(self, key: AgentKey, keep: int, count: int, record: bytes) -> None:
        self.write(partial(commit, key=key, keep=keep, count=count, record=record))

    @rule(key=KEYS, has=BLOCKS, wants=BLOCKS, size=st.integers(0, 99))
    def publish(self, key: AgentKey, has: set[int], wants: set[int], size: int) -> None:
        if agents.find(self.connection, key) is None:
            self.write(partial(commit, key=key, keep=0, count=1))
        self.write_warm(lambda c: publish(self.connection, c, key, has, wants, size))

    @rule(key=KEYS, new=st.sampled_from("abc"), keep=st.none() | TOKENS)
    def fork(self, key: AgentKey, new: str, keep: int | None) -> None:
        target = key._replace(agent_id=new)
        self.write(lambda c: branches.fork(c, key, target, None, keep, NEVER, NOW))

    @rule(key=KEYS, keep=TOKENS)
    def trim(self, key: AgentKey, keep: int) -> None:
        self.write(lambda c: branches.trim(c, key, keep, None, NOW))

    @rule(key=KEYS, name=NAMES)
    def snapshot(self, key: AgentKey, name: str) -> None:
        self.write(lambda c: snapshots.create(c, key, name, NOW))

    @rule(key=KEYS, name=NAMES)
    def restore(self, key: AgentKey, name: str) -> None:
        self.write(lambda c: branches.restore(c, key, name, NOW))

    @rule(key=KEYS, name=NAMES)
    def forget(self, key: AgentKey, name: str) -> None:
        self.write(lambda c: snapshots.delete(c, key, name))

    @rule(key=KEYS)
    def delete(self, key: AgentKey) -> None:
        self.write(lambda c: agents.delete(c, key))

    @rule(key=KEYS)
    def end(self, key: AgentKey) -> None:
        def work(connection: sqlite3.Connection) -> None:
            agents.change(connection, key, ttl=1, delete_after=2)
            idle.update(eviction.expire(connection, 1, holding.known(self.warm)).idle)
            eviction.expire(connection, 2, [])

        idle: dict[str, str] = {}
        self.write(work)
        for uid, namespace in idle.items():
            self.write_warm(partial(eviction.drop_agent, uid=uid, namespace=namespace))

    @rule(goal=st.integers(0, 300), namespace=st.sampled_from(("n", "m", None)))
    def evict(self, goal: int, namespace: str | None) -> None:
        idle = eviction.idle_order(self.connection, holding.known(self.warm), None, namespace)
        self.write_warm(lambda c: eviction.evict(c, goal, idle, TurnHints(), namespace))

    @rule(at=st.integers(0, 20))
    def vanish(self, at: int) -> None:
        for name, _ in self.published(at):
            self.write_warm(partial(references.forget, names=[name]))

    def published(self, at: int) -> list[tuple[FileName, str]]:
        """One of the files that exist, if there are any, and its namespace."""
        rows = self.warm.execute("SELECT kind, chain_hash, namespace FROM files ORDER BY 1, 2").fetchall()
        return [
            (FileName(FileKind(kind), name), namespace) for kind, name, namespace in rows[at % max(1, len(rows)) :][:1]
        ]

    @rule(namespace=st.sampled_from("nm"), records=st.lists(CONTENTS | st.none(), max_size=3))
    def put(self, namespace: str, records: list[tuple[bytes, bytes | None, list[bytes]] | None]) -> None:
        """Put a run's record, or delete it where there is one."""
        for content in records:
            record = workflow_records.find(self.connection, namespace, "w")
            version = record.version if record else 0
            if content is not None:
                summary, payload, events = content
                payload = b"first" if record is None and payload is None else payload
                self.write(partial(workflow_records.put, new=Put(namespace, "w", version, summary, payload, events)))
            elif record is not None:
                self.write(partial(workflow_records.delete, namespace=namespace, workflow_id="w", version=version))

    @invariant()
    def counts_are_those_of_the_rows(self) -> None:
        ledgers, kv = quotas.all_ledger_bytes(self.connection), quotas.all_kv_bytes(self.warm)
        assert (kv, ledgers) == by_hand(self.connection, self.warm)
        assert all(ledgers.values()), "a namespace that has nothing has no row"
        assert not self.connection.execute("SELECT 1 FROM segments WHERE namespace = ''").fetchall()
        self.connection.execute("BEGIN")
        quotas.recount_ledgers(self.connection)
        assert quotas.all_ledger_bytes(self.connection) == ledgers
        self.connection.execute("ROLLBACK")

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()
            self.warm.close()


TestUsage = UsageMachine.TestCase
TestUsage.settings = settings(max_examples=60 if FULL else 15, stateful_step_count=30, deadline=None)


def by_hand(connection: sqlite3.Connection, warm: sqlite3.Connection) -> tuple[dict[str, int], dict[str, int]]:
    """What each namespace takes of KV and of ledgers; a segment is whose agents, snapshots and turns stand on it."""
    parents = dict(connection.execute("SELECT id, parent_id FROM segments").fetchall())
    sizes = dict(
        connection.execute("SELECT id, length(token_ids) + length(text) + length(offsets) FROM segments").fetchall()
    )
    heads = connection.execute(
        "SELECT head_segment, namespace FROM agents"
        " UNION SELECT s.head_segment, a.namespace FROM snapshots AS s JOIN agents AS a USING (uid)"
        " UNION SELECT segment, agents.namespace FROM turns JOIN agents USING (uid) WHERE segment IS NOT NULL"
    ).fetchall()
    owned: set[tuple[str, int]] = set()
    for segment, namespace in heads:
        at: int | None = segment
        while at is not None:
            owned.add((namespace, at))
            at = parents[at]
    kv: Counter[str] = Counter()
    ledgers: Counter[str] = Counter()
    for namespace, segment in owned:
        ledgers[namespace] += sizes[segment]
    for namespace, size in warm.execute("SELECT namespace, size_bytes FROM files"):
        kv[namespace] += size
    records = "SELECT a.namespace, t.record FROM turns AS t JOIN agents AS a USING (uid)"
    runs = [
        "SELECT namespace, summary FROM workflow_records",
        "SELECT namespace, content FROM workflow_parts JOIN workflow_records ON id = record",
    ]
    for query in (records, *runs):
        for namespace, blob in connection.execute(query):
            ledgers[namespace] += len(blob)
    return dict(kv), dict(+ledgers)


@pytest.mark.parametrize("table", ["segments", "turns"])
def test_rows_that_nobody_would_count_are_refused(table: str) -> None:
    connection = connect(schema.migrate)
    columns = {
        "segments": "(parent_tokens, parent_bytes, tokens, text_bytes, generated_tokens, version, turns,"
        " tokenizer_hash, opening_bytes, template_time, digest, token_ids, text, offsets)"
        " VALUES (0, 0, 0, 0, 0, 1, 1, '', 0, '', x'', x'', x'', x'')",
        "turns": "(uid, version, revision, request_id, request_digest, commit_id, messages, message_hash, created,"
        " record) VALUES ('u', 1, x'', '', x'', x'', 0, x'', 0, x'')",
    }
    with pytest.raises(sqlite3.IntegrityError, match=r"NOT NULL constraint failed: .*namespace"):
        connection.execute(f"INSERT INTO {table} {columns[table]}")
    connection.close()
