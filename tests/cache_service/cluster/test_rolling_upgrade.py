"""Nodes of two versions: a newer one joins, and older ones serve on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmem.v1 import cache_store_pb2 as pb
from cache_service.cluster.ledger import ClusterSettings
from cache_service.cluster.postgres import schema
from tests.cache_service import kv
from tests.cache_service.cluster.several import Node, node

NEWER = (*schema.STEPS, schema.Step("CREATE TABLE newer (id BIGINT)"))


async def commit(on: Node, token: int, base: object = None) -> object:
    """A turn on a node, which is kept."""
    turn = kv.turn([token], base, keep=int(base is not None))  # type: ignore[arg-type]
    return (await on.store.cache.CommitTurn(turn)).version


async def test_a_newer_node_joins_and_the_older_ones_serve_on(
    data: Path, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(data, cluster, "a") as old:
        first = await commit(old, 1)
        monkeypatch.setattr(schema, "STEPS", NEWER)
        async with node(data, cluster, "b") as new:
            opened = await new.store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))
            assert opened.version == first
            await commit(old, 2, first)
            monkeypatch.setattr(schema, "STEPS", NEWER[:-1])
            async with node(data, cluster, "c") as restarted:
                assert (await restarted.store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))).version.version == 2
