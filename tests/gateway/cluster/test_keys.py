"""Gateways that ask for the cluster's keys: who is let in, when one is revoked, and when the store is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc
import httpx
import pytest

from agentmem.process.settings import SettingsError, load
from agentmem.v1 import cluster_pb2, inference_pb2
from gateway.cluster.keys import ClusterKeys
from gateway.edge.key_file import render
from gateway.edge.key_ring import KeyRing
from gateway.edge.keys import Shown, new
from gateway.settings import GatewaySettings
from tests.gateway.cluster.world import World, cluster, eventually, inference
from tests.gateway.scripted import delta, finished, started

NOW = datetime.now(UTC)
ADA, ADAS = new("ada", NOW)
BOB, BOBS = new("bob", NOW, admin=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with cluster("a", "b", cluster_keys=True) as made:
        yield made


async def status(world: World, name: str, key: Shown | str) -> int:
    """What a node's HTTP door says to who shows a key: the document needs one, and neither worker nor store."""
    async with httpx.AsyncClient(base_url=world[name].http, timeout=30) as http:
        return (await http.get("/openapi.json", headers={"authorization": f"Bearer {key}"})).status_code


async def until_all_say(world: World, key: Shown, said: int) -> None:
    async with asyncio.timeout(20):
        for name in "ab":
            while await status(world, name, key) != said:
                await asyncio.sleep(0.02)


async def test_keys_are_read_when_they_have_changed_and_not_else(world: World) -> None:
    store = world["a"].store
    before = store.read_keys
    assert before == 1
    world.ledger.has_keys(ADA)
    await until_all_say(world, ADAS, 200)
    world["a"].gateway.parts.cluster.worker_changed()  # type: ignore[union-attr]
    synced = world.ledger.nodes["a"]
    await eventually(lambda: world.ledger.nodes["a"] is not synced)
    assert store.read_keys == before + 1


@pytest.mark.slow
async def test_who_has_not_heard_from_the_store_lets_nobody_in(world: World) -> None:
    """Not for longer than the lease, which began before the store was asked."""
    world.ledger.has_keys(ADA)
    await until_all_say(world, ADAS, 200)
    world.ledger.lease = 1.0
    await eventually(lambda: world.ledger.nodes["a"].expires_in.ToTimedelta().total_seconds() == 1.0)
    world["a"].store.away = True
    world.ledger.has_keys()
    async with asyncio.timeout(20):
        while (said := await status(world, "a", ADAS)) != 503:
            assert said == 200
            await asyncio.sleep(0.02)
    async with world["a"].channel(str(ADAS)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await inference(channel).CountTokens(inference_pb2.CountTokensRequest())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    world.ledger.lease = 10.0
    world["a"].store.away = False
    await until_all_say(world, ADAS, 401)


async def test_what_a_revoked_key_has_running_ends_on_all_nodes(world: World) -> None:
    world.ledger.has_keys(ADA)
    await until_all_say(world, ADAS, 200)

    async def endless(_: Any) -> AsyncIterator[Any]:
        yield started()
        while True:
            yield delta("word ")
            await asyncio.sleep(0.05)
        yield finished()

    for node in world.nodes.values():
        node.worker.script = endless
    ends = []
    async with world["a"].channel(str(ADAS)) as a, world["b"].channel(str(ADAS)) as b:
        asked = inference_pb2.GenerateRequest(prompt="x")
        calls = [aiter(inference(each).Generate(asked)) for each in (a, b)]
        for call in calls:
            assert (await anext(call)).HasField("started")
        world.ledger.has_keys()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                async for _ in call:
                    pass
            ends.append(ended.value.code())
    assert ends == [grpc.StatusCode.UNAUTHENTICATED] * 2


def test_keys_that_cannot_be_read_let_nobody_in_until_they_can(caplog: pytest.LogCaptureFixture) -> None:
    source = ClusterKeys()
    source.confirm(float("inf"))
    for text in (b"{", b"\xff", render([ADA]).replace(ADA.sha256, "secret").encode()):
        source.take(cluster_pb2.GetKeysResponse(version="1", keys=text))
        with pytest.raises(Exception, match="cannot be checked now"):
            KeyRing(source).authenticate(str(ADAS))
    assert "secret" not in str([getattr(record, "fields", "") for record in caplog.records])
    source.take(cluster_pb2.GetKeysResponse(version="2", keys=render([ADA]).encode()))
    assert KeyRing(source).authenticate(str(ADAS)).namespace == "ada"


def test_before_they_were_read_nobody_is_let_in() -> None:
    with pytest.raises(Exception, match="cannot be checked now"):
        KeyRing(ClusterKeys()).authenticate(str(ADAS))


NODE = ["--node", "a", "--advertise", "a.local:1", "--cluster-tls", "/tls"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster-keys"], "this is no node of one"),
        ([*NODE, "--cluster-keys", "--keys", "k.json"], "agentmem keys import"),
    ],
)
def test_settings_that_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load(GatewaySettings, arguments)


def test_a_public_door_may_ask_for_the_clusters_keys() -> None:
    assert load(GatewaySettings, [*NODE, "--cluster-keys", "--http", "0.0.0.0:80"]).asks_for_keys
