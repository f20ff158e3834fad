"""Gateways that ask for the cluster's keys: when they are read, and when they are current."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import httpx
import pytest

from agentmem import errors
from agentmem.process.settings import SettingsError, load
from agentmem.v1 import cluster_pb2
from gateway.cluster.keys import ClusterKeys, now
from gateway.edge.key_file import render
from gateway.edge.key_ring import KeyRing
from gateway.edge.keys import new
from gateway.settings import GatewaySettings
from tests.gateway.cluster.world import World, cluster
from tests.gateway.running import eventually

NOW = datetime.now(UTC)
ADA, ADAS = new("ada", NOW)


async def until_it_says(world: World, said: int) -> None:
    """Wait until a node's HTTP door says this to ada: the document needs a key, and neither worker nor store."""
    headers = {"authorization": f"Bearer {ADAS}"}
    async with httpx.AsyncClient(base_url=world["a"].http, timeout=30) as http, asyncio.timeout(20):
        while (await http.get("/openapi.json", headers=headers)).status_code != said:
            await asyncio.sleep(0.02)


async def test_keys_are_read_when_they_have_changed_and_not_else() -> None:
    async with cluster("a", cluster_keys=True) as world:
        node, ledger = world["a"], world.ledger
        await until_it_says(world, 401)
        assert node.store.read_keys == 1
        ledger.has_keys(ADA)
        await until_it_says(world, 200)
        synced = ledger.nodes["a"]
        await eventually(lambda: ledger.nodes["a"] is not synced)
        assert node.store.read_keys == 2
        ledger.has_keys()
        await until_it_says(world, 401)


def test_keys_that_cannot_be_read_let_nobody_in_until_they_can(caplog: pytest.LogCaptureFixture) -> None:
    source = ClusterKeys()
    source.confirm(float("inf"))
    for text in (b"{", b"\xff", b"[]", render([ADA]).replace('"version": 1', '"version": 2').encode()):
        source.take(cluster_pb2.GetKeysResponse(version="1", keys=text))
        with pytest.raises(Exception, match="cannot be checked now"):
            KeyRing(source).authenticate(str(ADAS))
    source.take(cluster_pb2.GetKeysResponse(version="2", keys=render([ADA]).encode()))
    assert KeyRing(source).authenticate(str(ADAS)).namespace == "ada"


@pytest.mark.parametrize("newer", [{"sha256": "secret"}, {"regions": ["secret"]}])
def test_a_key_that_cannot_be_read_shuts_out_nobody_else(newer: object, caplog: pytest.LogCaptureFixture) -> None:
    eve, eves = new("eve", NOW)
    data = json.loads(render([ADA, eve]))
    data["keys"][1] |= newer
    source = ClusterKeys()
    source.confirm(float("inf"))
    source.take(cluster_pb2.GetKeysResponse(version="1", keys=json.dumps(data).encode()))
    assert KeyRing(source).authenticate(str(ADAS)).namespace == "ada"
    with pytest.raises(errors.Unauthenticated):
        KeyRing(source).authenticate(str(eves))
    said = str([getattr(record, "fields", "") for record in caplog.records])
    assert "keys.1." in said and "secret" not in said


def test_keys_are_current_from_the_first_reading_to_the_end_of_its_lease() -> None:
    source = ClusterKeys()
    assert not source.look().is_current
    source.take(cluster_pb2.GetKeysResponse(version="1", keys=render([ADA]).encode()))
    source.confirm(now() + 60)
    assert source.look().is_current
    source.confirm(now() - 1)
    assert not source.look().is_current


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
