"""A directory's ledgers into a cluster and back: the same agents, whose files of KV stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.cluster.settings import ClusterSettings
from cache_service.ledger.postgres.settings import Settings, Survives
from cache_service.offline.check import check as check_directory
from cache_service.offline.cluster import exporting, importing
from cache_service.offline.cluster.checking import check
from cache_service.offline.findings import CannotCheck
from tests.cache_service import kv
from tests.cache_service.conftest import Running, running
from tests.cache_service.offline.directory import ADA, change, everything, fill_branches, query

RUN = dict(namespace="default", workflow_id="w")
AGENTS = ("ada", "eve", "cut", "none", "idle", "bob")


@pytest.fixture
async def branched(data: Path) -> Path:
    """A directory with forks, snapshots, cuts, past turns, and a run."""
    await fill_branches(data)
    return data


@pytest.fixture
def server(cluster: ClusterSettings) -> Settings:
    return Settings(cluster.url, cluster.schema, "a", Survives.NOTHING)


async def told(store: Running) -> dict[str, Any]:
    """What a store says of each agent: state, ledger, snapshots."""
    found: dict[str, Any] = {}
    for name in AGENTS:
        agent = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key(name)))).agent
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


async def test_agents_and_their_files_are_the_same_in_a_cluster_and_back_on_one_machine(
    branched: Path, cluster: ClusterSettings, server: Settings, tmp_path: Path
) -> None:
    async with running(branched) as store:
        before = await told(store)
        warm = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key("bob")))).agent.SerializeToString()
    files = sorted(path.name for path in branched.rglob("*.safetensors"))
    done = importing.bring(branched, server)
    assert done.rows["agents"] == len(AGENTS)
    assert not (branched / "store.db").exists()
    assert check(server).findings == []
    async with running(branched, cluster=cluster) as store:
        assert await told(store) == before
        bob = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key("bob")))).agent
        assert bob.SerializeToString() == warm
        assert sorted(path.name for path in branched.rglob("*.safetensors")) == files
        await store.agents.RestoreSnapshot(agent_pb2.RestoreSnapshotRequest(key=kv.key(), name="mine"))
        ada = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key()))).agent
        assert ada.tokens == len(ADA)
        await store.cache.CommitTurn(kv.turn([1, 2, 3], ada.version, keep=len(ADA), request_id="after"))
        before = await told(store)
    assert importing.bring(branched, server).was_done
    assert exporting.take(tmp_path / "back", server).rows["agents"] == len(AGENTS)
    assert check_directory(tmp_path / "back").findings == []
    async with running(tmp_path / "back") as store:
        assert await told(store) == before


async def test_what_is_there_already_is_named_and_nothing_is_written(
    branched: Path, cluster: ClusterSettings, server: Settings
) -> None:
    async with running(branched.with_name("other"), cluster=cluster) as store:
        await store.cache.CommitTurn(kv.turn([1, 2, 3]))
    before = everything(branched)
    with pytest.raises(CannotCheck, match="agent default/ada/demo"):
        importing.bring(branched, server)
    assert everything(branched) == before
    assert check(server).agents == 1


async def test_a_damaged_directory_is_refused_and_nothing_is_written(branched: Path, server: Settings) -> None:
    change(branched, "UPDATE segments SET checksum = zeroblob(16) WHERE id = 2")
    before = everything(branched)
    with pytest.raises(CannotCheck, match="checksum differs"):
        importing.bring(branched, server)
    assert everything(branched) == before
    assert check(server).agents == 0
    assert query(branched, "SELECT ledgers FROM directory") == [("",)]
