"""Keys of callers in the shared ledger: what stores know of them, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import grpc
import psycopg
import pytest

from agentmem.v1 import cluster_pb2 as pb
from cache_service.cluster import keys, membership
from cache_service.cluster.keys import ApiKey, KeyTaken
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.settings import Settings, Survives
from cache_service.cluster.settings import ClusterSettings
from tests.cache_service.cluster.several import Node, node
from tests.postgres import Server

ADAS = ApiKey("0" * 12, "ada", "a" * 64, 1_700_000_000_000_001, None, "", 0, None, None)
BOBS = ApiKey("1" * 12, "bob \x01\0", "b" * 64, 1_700_000_000_000_002, 253_402_300_799_000_000, "b's", 1, 0, 600)


def settings_of(cluster: ClusterSettings) -> Settings:
    return Settings(cluster.url, cluster.schema, survives=Survives.NOTHING)


@contextmanager
def ledger(cluster: ClusterSettings) -> Iterator[Postgres]:
    """The ledger, as a command opens it."""
    postgres = Postgres(settings_of(cluster))
    try:
        assert postgres.open_existing()
        yield postgres
    finally:
        postgres.close()


async def known(on: Node) -> tuple[str, list[str]]:
    """What SyncNode calls the present keys, and the ids that ListKeys has."""
    synced = await on.cluster.SyncNode(pb.SyncNodeRequest(ready=True))
    listed = await on.cluster.ListKeys(pb.ListKeysRequest())
    assert listed.version
    return synced.keys_version, [key.id for key in listed.keys]


async def told(on: Node) -> tuple[str, list[str]] | grpc.StatusCode:
    """What is `known`, or why it is not said."""
    try:
        return await known(on)
    except grpc.aio.AioRpcError as error:
        return error.code()


async def until_known(on: Sequence[Node], *ids: str, after: str = "") -> str:
    """Wait until stores know these keys and no others, under one version, which is not the one before: what is changed
    while a store reads has that until it reads again. That version.
    """
    async with asyncio.timeout(30):
        while True:
            found = [await known(each) for each in on]
            if found[0][0] != after and all(each == (found[0][0], list(ids)) for each in found):
                return found[0][0]
            await asyncio.sleep(0.02)


async def test_all_stores_are_told_of_a_change(
    data: Path, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: no heartbeat would come before the test is over."""
    monkeypatch.setattr(membership, "BEAT_SECONDS", 600.0)
    async with node(data, cluster, "a") as a, node(data, cluster, "b") as b:
        with ledger(cluster) as postgres:
            none = await until_known((a, b))
            assert postgres.write_blocking(keys.add, [ADAS, BOBS]) == 2
            both = await until_known((a, b), ADAS.id, BOBS.id, after=none)
            assert postgres.write_blocking(keys.revoke, ADAS.id)
            assert await until_known((a, b), BOBS.id, after=both) != none
            assert not postgres.write_blocking(keys.revoke, ADAS.id)
        (told,) = (await a.cluster.ListKeys(pb.ListKeysRequest())).keys
        assert (told.namespace, told.sha256, told.label, told.admin) == ("bob \x01\0", "b" * 64, "b's", True)
        assert (told.HasField("max_running"), told.max_running, told.max_per_minute) == (True, 0, 600)
        assert told.expires.ToDatetime(UTC) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


async def test_what_has_not_changed_is_not_read_again(data: Path, cluster: ClusterSettings) -> None:
    async with node(data, cluster, "a"):
        with ledger(cluster) as postgres:
            postgres.write_blocking(keys.add, [ADAS])
            found = postgres.read_blocking(keys.changed, "")
            assert found is not None and found.keys == [ADAS]
            assert postgres.read_blocking(keys.changed, found.version) is None
            assert postgres.write_blocking(keys.add, [ADAS]) == 0
            assert postgres.read_blocking(keys.changed, found.version) is None


async def test_all_or_none_are_added(data: Path, cluster: ClusterSettings) -> None:
    async with node(data, cluster, "a"):
        with ledger(cluster) as postgres:
            postgres.write_blocking(keys.add, [ADAS])
            with pytest.raises(KeyTaken, match=ADAS.id):
                postgres.write_blocking(keys.add, [BOBS, ADAS._replace(namespace="bob")])
            assert postgres.read_blocking(keys.every) == [ADAS]


async def test_a_node_that_is_cut_off_tells_nobody_its_keys_are_current(
    data: Path, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_LEASE_SECONDS", 2.0)
    monkeypatch.setattr(membership, "BEAT_SECONDS", 0.1)
    async with node(data, cluster, "a") as a:
        with ledger(cluster) as postgres:
            postgres.write_blocking(keys.add, [ADAS])
            written = postgres.read_blocking(keys.changed, "")
            assert written is not None
            while (before := await until_known([a], ADAS.id)) != written.version:
                await asyncio.sleep(0.02)  # read while they were changed, and read again with the next heartbeat
            again = a.cut_off()
            postgres.write_blocking(keys.revoke, ADAS.id)
            while (answer := await told(a)) is not grpc.StatusCode.UNAVAILABLE:
                assert answer == (before, [ADAS.id]) or not answer[1]  # or what a heartbeat under way has read
                await asyncio.sleep(0.02)
            again()
            while (answer := await told(a)) is grpc.StatusCode.UNAVAILABLE:
                await asyncio.sleep(0.02)
            await until_known([a], after=before)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {0}.keys (id, namespace, sha256, created) VALUES ('222222222222', 'c', repeat('c', 64), 0)",
        "UPDATE {0}.keys SET namespace = 'c'",
        "DELETE FROM {0}.keys",
        "TRUNCATE {0}.keys",
    ],
)
async def test_what_an_operator_changes_by_hand_counts(
    data: Path, cluster: ClusterSettings, postgres_server: Server, statement: str
) -> None:
    """In a session that knows nothing of the schema."""
    async with node(data, cluster, "a"):
        with ledger(cluster) as postgres:
            postgres.write_blocking(keys.add, [ADAS])
            before = postgres.read_blocking(keys.changed, "")
            assert before is not None
            with postgres_server.connect() as connection:
                connection.execute(statement.format(f'"{cluster.schema}"').encode())
            after = postgres.read_blocking(keys.changed, before.version)
            assert after is not None and after.keys != before.keys


@pytest.mark.parametrize(
    "bad",
    [{"id": "x" * 12}, {"id": "0" * 11}, {"sha256": "secret"}, {"namespace": ""}, {"max_running": -1}, {"admin": 2}],
)
async def test_what_is_no_key_cannot_be_there(data: Path, cluster: ClusterSettings, bad: dict[str, object]) -> None:
    async with node(data, cluster, "a"):
        with ledger(cluster) as postgres, pytest.raises(psycopg.errors.CheckViolation):
            postgres.write_blocking(keys.add, [ADAS._replace(**bad)])  # type: ignore[arg-type]
