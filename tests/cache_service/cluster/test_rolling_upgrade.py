"""Nodes of two versions: a newer one joins, older ones serve on, and what only they use goes after they have."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentmem.v1 import cache_store_pb2 as pb
from cache_service.cluster import membership, nodes
from cache_service.cluster.settings import ClusterSettings
from cache_service.ledger.postgres import schema
from cache_service.ledger.schema import SchemaTooNew
from tests.cache_service import kv
from tests.cache_service.cluster.several import Node, node
from tests.cache_service.conftest import running

NEWER = (
    *schema.STEPS,
    schema.Step("CREATE TABLE newer (id BIGINT)", contract="ALTER TABLE agents DROP COLUMN template_time"),
)


async def commit(on: Node, token: int, base: object = None) -> object:
    """A turn on a node, which is kept."""
    turn = kv.turn([token], base, keep=int(base is not None))  # type: ignore[arg-type]
    return (await on.store.cache.CommitTurn(turn)).version


def columns(on: Node) -> int:
    """How many columns of those that only the older version uses there are."""
    statement = (
        "SELECT count(*) FROM information_schema.columns WHERE table_schema = current_schema()"
        " AND table_name = 'agents' AND column_name = 'template_time'"
    )
    return int(on.store.store._database.read_blocking(lambda c: c.execute(statement).fetchone())[0])


async def test_a_newer_node_joins_and_the_older_ones_serve_on(
    data: Path, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "BEAT_SECONDS", 0.1)
    async with node(data, cluster, "a") as old:
        first = await commit(old, 1)
        monkeypatch.setattr(schema, "STEPS", NEWER)
        async with node(data, cluster, "b") as new:
            opened = await new.store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))
            assert opened.version == first
            await commit(old, 2, first)
            await asyncio.sleep(1.0)  # ten heartbeats
            assert columns(new) == 1, "an older node is there, which uses it"
            monkeypatch.setattr(schema, "STEPS", NEWER[:-1])
            async with node(data, cluster, "c") as restarted:
                assert (await restarted.store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))).version.version == 2


async def test_what_only_older_nodes_use_goes_when_they_have(
    data: Path, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is gone may come back, and counts, for an hour."""
    monkeypatch.setattr(membership, "BEAT_SECONDS", 0.1)
    leave = nodes.leave
    async with node(data, cluster, "a") as old:
        await commit(old, 1)
        monkeypatch.setattr(nodes, "leave", lambda *_: None)
    monkeypatch.setattr(nodes, "leave", leave)
    monkeypatch.setattr(schema, "STEPS", NEWER)
    async with node(data, cluster, "b") as new:
        await asyncio.sleep(0.5)
        assert columns(new) == 1, "the older node has not said that it ends"
        monkeypatch.setattr(nodes, "_REMEMBERED", -nodes.LEASE)
        async with asyncio.timeout(30):
            while columns(new):
                await asyncio.sleep(0.1)
    monkeypatch.setattr(schema, "STEPS", NEWER[:-1])
    with pytest.raises(SchemaTooNew, match="use a newer agentmem"):
        async with running(data.with_name("a"), cluster=cluster):
            pass
