"""A directory's ledgers into a cluster and back: the same agents."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.cluster.offline import exporting, importing, rows
from cache_service.cluster.offline.checking import check
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from cache_service.offline.check import check as check_directory
from cache_service.offline.findings import CannotCheck
from tests.cache_service import kv, scenarios
from tests.cache_service.conftest import Running, running
from tests.cache_service.offline.directory import ADA, change, everything, query

AGENTS = ("ada", "eve", "cut", "none", "idle", "bob")


async def told(store: Running) -> dict[str, Any]:
    """Return the agents' states, ledgers and snapshots."""
    found: dict[str, Any] = {}
    for name in AGENTS:
        agent = await store.agent(name)
        opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(name), peek=True))
        snapshots = (await store.agents.ListSnapshots(agent_pb2.ListSnapshotsRequest(key=kv.key(name)))).snapshots
        found[name] = (
            agent.version.SerializeToString(),
            agent.tokens,
            agent.turns,
            opened.ledger.SerializeToString(),
            [(each.name, each.tokens, each.version.SerializeToString()) for each in snapshots],
        )
    return found


@pytest.mark.slow
async def test_agents_are_the_same_in_a_cluster_and_back_on_one_machine(
    branched: Path, cluster: Settings, tmp_path: Path
) -> None:
    async with running(branched) as store:
        before = await told(store)
    done = importing.bring(branched, cluster)
    assert done.rows["agents"] == len(AGENTS)
    assert [path.name for path in branched.glob("store.db*")] == [done.kept.name]
    assert check(cluster).findings == []
    async with running(branched, cluster=cluster) as store:
        assert await told(store) == before
        await store.restore("mine")
        ada = await store.agent()
        assert ada.tokens == len(ADA)
        await store.cache.CommitTurn(kv.turn([1, 2, 3], ada.version, keep=len(ADA), request_id="after"))
        before = await told(store)
    assert importing.bring(branched, cluster).was_done
    assert exporting.take(tmp_path / "back", cluster)["agents"] == len(AGENTS)
    assert check_directory(tmp_path / "back").findings == []
    async with running(tmp_path / "back") as store:
        assert await told(store) == before


async def test_nodes_go_on_while_an_import_takes_its_time(
    branched: Path, cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They follow deletions, and each row of a namespace's bytes that commits write is free."""
    written, go_on, copy = threading.Event(), threading.Event(), rows.copy

    def late(store: Connection, ledger: Connection, **others: Any) -> Any:
        copied = copy(store, ledger, **others)
        written.set()
        while not go_on.wait(0.05):
            ledger.execute("SELECT 1").fetchone()  # a session that idles is ended
        return copied

    monkeypatch.setattr(rows, "copy", late)
    async with running(branched.with_name("other"), cluster=cluster) as store, asyncio.timeout(60):
        doing = asyncio.create_task(asyncio.to_thread(importing.bring, branched, cluster))
        try:
            await asyncio.to_thread(written.wait)
            version = None
            for number in range(70):
                turn = kv.turn([number], version, number, agent=kv.key("zoe"))
                version = (await store.cache.CommitTurn(turn)).version
            await store.delete(kv.key("zoe"))
        finally:
            go_on.set()
        assert (await doing).rows["agents"] == len(AGENTS)
    assert check(cluster).findings == []


async def test_what_is_there_already_is_named_and_nothing_is_written(branched: Path, cluster: Settings) -> None:
    async with running(branched.with_name("other"), cluster=cluster) as store:
        await store.cache.CommitTurn(kv.turn([1, 2, 3]))
    before = everything(branched)
    with pytest.raises(CannotCheck, match="agent default/ada/demo"):
        importing.bring(branched, cluster)
    assert everything(branched) == before
    assert check(cluster).agents == 1


async def test_a_damaged_directory_is_refused_and_nothing_is_written(branched: Path, cluster: Settings) -> None:
    change(branched, "UPDATE segments SET digest = zeroblob(16) WHERE id = 2")
    before = everything(branched)
    with pytest.raises(CannotCheck, match="digest differs"):
        importing.bring(branched, cluster)
    assert everything(branched) == before
    assert check(cluster).agents == 0
    assert query(branched, "SELECT ledgers FROM directory") == query(branched, "SELECT ledger_id FROM ledger")


async def test_past_turns_are_replayed_and_runs_go_on(furnished: Path, cluster: Settings) -> None:
    again = kv.turn([5, 6], None, 4, request_id="ada 2", request_digest=b"d")
    run = pb.GetWorkflowRecordRequest(namespace="default", workflow_id="w")
    async with running(furnished) as store:
        before = await store.cache.CommitTurn(again)
        record = await store.cache.GetWorkflowRecord(run)
    importing.bring(furnished, cluster)
    async with running(furnished, cluster=cluster) as store:
        assert await store.cache.CommitTurn(again) == before
        assert await store.cache.GetWorkflowRecord(run) == record
        await scenarios.append(store)
        await store.cache.PutWorkflowRecord(pb.PutWorkflowRecordRequest(record=scenarios.workflow(1, b"two")))
    assert check(cluster).findings == []


async def test_a_second_directory_gets_ids_of_its_own(furnished: Path, cluster: Settings) -> None:
    async with running(furnished.with_name("second")) as store:
        version = (await store.cache.CommitTurn(kv.turn([1, 2, 3], agent=kv.key("zoe")))).version
        await scenarios.hold(store, kv.key("zoe"), [21, 22])
        await store.snapshot("s", "zoe")
        await store.cache.CommitTurn(kv.turn([4], version, keep=3, agent=kv.key("zoe")))
    importing.bring(furnished, cluster)
    importing.bring(furnished.with_name("second"), cluster)
    assert check(cluster).findings == []
    async with running(furnished.with_name("second"), cluster=cluster) as store:
        await store.restore("s", "zoe")
        assert (await store.agent("zoe")).tokens == 3


async def test_objects_are_left_where_they_are(furnished: Path, cluster: Settings) -> None:
    change(furnished, "INSERT INTO remote_place VALUES (1, 'me', 's3://bucket/one')")
    change(
        furnished,
        "INSERT INTO objects SELECT kind, chain_hash, namespace, agent_id, model_id, fingerprint, parent, first_token,"
        " token_count, size_bytes, digest, 1, '', '' FROM files JOIN held USING (kind, chain_hash) LIMIT 1",
    )
    done = importing.bring(furnished, cluster)
    assert (done.objects_left, done.location) == (1, "s3://bucket/one")
    assert check(cluster).findings == []
