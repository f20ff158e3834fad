"""Statements of every turn look rows up: none walks a table whose size is that of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest

from agentmem.kv.hints import TurnHints
from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey
from cache_service.files import holding
from cache_service.ledger import agents
from cache_service.ledger.database import READERS, Database
from cache_service.tiers import eviction
from tests.cache_service.tiers.test_warm import hold, pin, speak

from . import kv
from .conftest import Running

OWN = ("found", "usage", "chain", "used", "page", "names", "j", "uploading", "CONSTANT")
"""Walks over two rows, or over what a statement has found itself, of one agent or of a page of them."""


def scanned(connection: sqlite3.Connection, statement: str) -> list[str]:
    steps = [row[3].split() for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    return [" ".join(step) for step in steps if step[0] == "SCAN" and not (step[1] in OWN or step[1][0] == "(")]


class Trace:
    def __init__(self, store: Running) -> None:
        self.databases = {"store.db": store.store._database, "warm.db": store.store._rows}
        self.statements: dict[str, list[str]] = {name: [] for name in self.databases}

    def __enter__(self) -> Trace:
        for name, database in self.databases.items():
            self._set(database, self.statements[name].append)
        return self

    def __exit__(self, *_: object) -> None:
        for database in self.databases.values():
            self._set(database, None)

    def _set(self, database: Database, callback: Callable[[str], None] | None) -> None:
        database.write_blocking(lambda connection: connection.set_trace_callback(callback))
        for reader in [database._readers.get() for _ in range(READERS)]:
            reader.set_trace_callback(callback)
            database._readers.put(reader)

    def scans(self) -> dict[str, list[str]]:
        """Statements that walk tables, with where they do."""
        kinds = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")
        plans: dict[str, list[str]] = {}
        for name, database in self.databases.items():
            ours = [each for each in dict.fromkeys(self.statements[name]) if each.startswith(kinds)]
            plans |= database.read_blocking(lambda c, ours=ours: {each: scanned(c, each) for each in ours})
        assert plans
        return {statement: scans for statement, scans in plans.items() if scans}


async def test_a_scrape_walks_agents_and_looks_the_rest_up(store: Running) -> None:
    await speak(store, "a", [0])
    with Trace(store) as trace:
        assert store.store._database.read_blocking(agents.count) == (1, set())
        assert len(store.store._rows.read_blocking(holding.warm_uids)) == 1
    assert {step.split()[1] for steps in trace.scans().values() for step in steps} <= {"agents", "object_refs", "held"}


async def test_no_turn_walks_a_table(store: Running) -> None:
    base = await speak(store, "a", [0, 1])
    await store.snapshot("s", "a")
    with Trace(store) as trace:
        hashes = [kv.header([n, 0]).chain_hash for n in range(4)]
        opened = pb.OpenCacheRequest(key=kv.key("a"), block_hashes=hashes, window_hashes=hashes, request_id="r")
        await store.cache.OpenCache(opened)
        version = (await store.cache.CommitTurn(kv.turn([1], base, agent=kv.key("a"), request_id="r"))).version
        await hold(store, "a", [0, 2, 3], version)
        for wanted in ({"request_id": "r"}, {"message_hashes": [b"0" * 16]}):
            asked = agent_pb2.FindAgentRequest(namespace="default", model_id="demo", **wanted)  # type: ignore[arg-type]
            await store.agents.FindAgent(asked)
        await store.agent("a")
        for keep in range(6):  # more than there are automatic snapshots
            version = (await store.cache.CommitTurn(kv.turn([keep], version, 0, kv.key("a")))).version
    assert trace.scans().keys() <= {"SELECT coalesce(sum(size_bytes), 0) FROM files"}, "by an index: 3 ms a TB"


async def test_a_page_of_runs_is_a_range_of_an_index(store: Running) -> None:
    """Nothing is sorted, and no run of another namespace or page is looked at."""
    for number in range(3):
        record = pb.WorkflowRecord(namespace="n", workflow_id=f"w{number}", payload=b"p")
        await store.cache.PutWorkflowRecord(pb.PutWorkflowRecordRequest(record=record))
    with Trace(store) as trace:
        first = await store.cache.ListWorkflowRecords(pb.ListWorkflowRecordsRequest(namespace="n", page_size=1))
        again = pb.ListWorkflowRecordsRequest(namespace="n", page_size=1, page_token=first.next_page_token)
        await store.cache.ListWorkflowRecords(again)
    assert [plan(store, each) for each in trace.statements["store.db"] if each.startswith("SELECT")] == 2 * [
        ["SEARCH workflow_records USING INDEX workflow_records_by_age (namespace=? AND id<?)"]
    ]


def plan(store: Running, statement: str) -> list[str]:
    return store.store._database.read_blocking(
        lambda connection: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    )


@pytest.mark.parametrize("namespace", [None, "default"])
async def test_no_eviction_walks_agents_or_references(store: Running, namespace: str | None) -> None:
    """Files that nobody ever had are looked for among all files (of the namespace): only where room is needed."""
    for number, agent in enumerate("abc"):
        await speak(store, agent, [number])
    await pin(store, "c")
    key = AgentKey("default", "a", "demo")

    def ask(connection: sqlite3.Connection) -> tuple[set[str], dict[AgentKey, str]]:
        uid = agents.existing(connection, key).version.uid
        eviction.last_used(connection, TurnHints(), namespace)
        return eviction.pinned(connection, uid, namespace), eviction.idle_order(connection, [uid], None, namespace)

    def work(connection: sqlite3.Connection) -> None:
        holding.held_bytes(connection, pinned)
        eviction.evict(connection, 10**9, idle, TurnHints(), namespace)

    with Trace(store) as trace:
        pinned, idle = store.store._database.read_blocking(ask)
        store.store._rows.change(work)
    steps = {step for steps in trace.scans().values() for step in steps}
    assert steps <= {
        "SCAN files",
        "SCAN j VIRTUAL TABLE INDEX 1:",  # the uids that are given
        "SCAN names",  # of their files
        "SCAN agents",  # as SQLite prefers where there are few
        "SCAN agents USING INDEX agents_by_use",  # in the order of use, until there is room
        "SCAN agents USING INDEX agents_pinned",  # those that are
    }


async def test_a_gateway_that_attends_looks_at_no_run_that_has_ended(
    store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_service.ledger_home.Holders.is_new", False)
    for number in range(3):
        record = pb.WorkflowRecord(namespace="n", workflow_id=f"w{number}", payload=b"p", holder="gone" * (number < 2))
        await store.cache.PutWorkflowRecord(pb.PutWorkflowRecordRequest(record=record))
    with Trace(store) as trace:
        answer = await store.cache.AttendWorkflowRecords(pb.AttendWorkflowRecordsRequest(holder="h"))
    assert [record.workflow_id for record in answer.unattended] == ["w1", "w0"]
    by_holder = "SEARCH workflow_records USING INDEX workflow_records_held (holder"
    ours = [plan(store, each)[0] for each in trace.statements["store.db"] if "workflow_records" in each]
    assert len(ours) == 2 and all(each.startswith(by_holder) for each in ours)
