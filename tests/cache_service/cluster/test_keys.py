"""Keys of callers in the shared ledger: what stores know of them, and when."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import grpc
import pytest

from agentmem.v1 import cluster_pb2 as pb
from cache_service.cluster import keys, membership, nodes
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.settings import Settings
from tests.cache_service.cluster.several import Node, node


def put(cluster: Settings, text: bytes, if_version: str | None = None) -> bool:
    """As a command does."""
    postgres = Postgres(cluster)
    try:
        present = postgres.read_blocking(keys.get).version
        return postgres.write_blocking(keys.put, text, present if if_version is None else if_version)
    finally:
        postgres.close()


async def version(on: Node) -> str | grpc.StatusCode:
    """Return the version of the keys that SyncNode says, or why it says none."""
    try:
        return (await on.cluster.SyncNode(pb.SyncNodeRequest(ready=True))).keys_version
    except grpc.aio.AioRpcError as error:
        return error.code()


async def until_known(*on: Node, text: bytes) -> str:
    """Wait until stores have the version of these keys."""
    async with asyncio.timeout(30):
        for each in on:
            while (found := await each.cluster.GetKeys(pb.GetKeysRequest())).keys != text:
                await asyncio.sleep(0.02)
            while await version(each) != found.version:
                await asyncio.sleep(0.02)
    return found.version


async def test_all_stores_are_told_of_a_change(data: Path, cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: no heartbeat would come before the test is over."""
    monkeypatch.setattr(membership, "BEAT_SECONDS", 600.0)
    async with node(data, cluster, "a") as a, node(data, cluster, "b") as b:
        none = await until_known(a, b, text=b"")
        assert put(cluster, b"\0ada's")
        first = await until_known(a, b, text=b"\0ada's")
        assert not put(cluster, b"bob's", if_version=none)
        assert put(cluster, b"bob's", if_version=first)
        await until_known(a, b, text=b"bob's")


async def test_a_node_that_is_cut_off_tells_nobody_its_keys_are_current(
    data: Path, cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_LEASE_SECONDS", 2.0)
    monkeypatch.setattr(membership, "BEAT_SECONDS", 0.1)
    async with node(data, cluster, "a") as a:
        put(cluster, b"ada's")
        before = await until_known(a, text=b"ada's")
        again = a.cut_off()
        put(cluster, b"")
        while (answer := await version(a)) is not grpc.StatusCode.UNAVAILABLE:
            assert answer == before or (await a.cluster.GetKeys(pb.GetKeysRequest())).version == answer
            await asyncio.sleep(0.02)
        again()
        await until_known(a, text=b"")


def test_an_emptied_table_has_no_keys_and_takes_new_ones(postgres: Postgres) -> None:
    empty = postgres.read_blocking(keys.get)
    postgres.write_blocking(lambda connection: connection.execute("DELETE FROM keys"))
    assert postgres.write_blocking(nodes.beat, nodes.Said("a", "d", "a:1", 0, b""), 0).keys_version == empty.version
    assert postgres.read_blocking(keys.get) == empty == (sha256().hexdigest(), b"")
    assert not postgres.write_blocking(keys.put, b"ada's", "another version")
    assert postgres.write_blocking(keys.put, b"ada's", empty.version)
    assert postgres.read_blocking(keys.get).text == b"ada's"
