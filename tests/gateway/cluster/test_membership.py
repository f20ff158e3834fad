"""Joining, leaving, and when a node is ready."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem import errors
from agentmem.v1 import agent_pb2, cluster_pb2, types_pb2
from gateway.cli.main import main
from gateway.cluster import keys as cluster_keys
from tests.gateway.cluster.world import World, ask, cluster, turn
from tests.gateway.running import eventually, running


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with cluster("a", "b") as started:
        yield started


async def ready(world: World, name: str) -> tuple[int, str]:
    async with httpx.AsyncClient(base_url=world[name].http, timeout=30) as http:
        answer = await http.get("/readyz")
    return answer.status_code, answer.text


async def test_a_node_says_what_it_serves(world: World) -> None:
    node = world.ledger.nodes["a"]
    assert [(model.model_id, model.fingerprint, model.loaded) for model in node.models] == [("demo", "f1", True)]
    assert node.ready
    assert not node.draining
    assert (await ready(world, "a"))[0] == 200


async def test_a_store_that_is_away_is_noticed_when_the_lease_ends(world: World) -> None:
    world.ledger.lease = 1.0
    await eventually(lambda: world.ledger.nodes["a"].expires_in.ToTimedelta().total_seconds() == 1.0)
    world["a"].store.away = True
    await eventually(lambda: world["a"].ready == 0)
    status, said = await ready(world, "a")
    assert (status, "this node is not among the cluster's" in said) == (503, True)
    async with world["a"].channel() as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        async with asyncio.timeout(20):
            async for answer in watch:
                if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                    break
        watch.cancel()
    world.ledger.lease = 10.0
    world["a"].store.away = False
    await eventually(lambda: world["a"].ready == 2)
    assert (await ready(world, "a"))[0] == 200


async def test_a_node_that_was_cut_off_drops_what_others_have_changed_from_memory(world: World) -> None:
    """Erased while nobody waited for it, or spoken elsewhere since; what it made last stays."""
    for agent in ("erased", "moved", "here"):
        world.says(agent, last_on="a")
        await ask(world, "a", turn(agent))
    world["a"].store.away = True
    await eventually(lambda: world["a"].gateway.parts.cluster.membership._failure)  # type: ignore[union-attr]
    world.says("erased")
    world.says("moved", last_on="b")
    world["a"].worker.refusals["EvictAgent"] = errors.NotFound("agent", "erased")
    world["a"].store.away = False

    def evicted() -> list[agent_pb2.EvictAgentRequest]:
        return [each for each in world["a"].worker.requests if isinstance(each, agent_pb2.EvictAgentRequest)]

    await eventually(lambda: len(evicted()) == 2)
    assert [(each.key.agent_id, each.tier) for each in evicted()] == [
        ("erased", types_pb2.TIER_HOT),
        ("moved", types_pb2.TIER_HOT),
    ]
    assert not [each for each in world["b"].worker.requests if isinstance(each, agent_pb2.EvictAgentRequest)]


async def test_leases_end_while_a_machine_sleeps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waking, it takes no node for alive, itself included, and drops what others may have changed meanwhile."""
    world.says("moved", last_on="a")
    await ask(world, "a", turn("moved"))
    membership = world["a"].gateway.parts.cluster.membership  # type: ignore[union-attr]
    assert membership.alive("a") and membership.alive("b") and not membership.problem
    world.says("moved", last_on="b")
    awake = cluster_keys.now
    monkeypatch.setattr(cluster_keys, "now", lambda: awake() + 300)
    assert not (membership.alive("a") or membership.alive("b")) and "lease has ended" in membership.problem
    assert not any(node.ready for node in membership.nodes())
    assert {node.expires_in.ToNanoseconds() for node in membership.report()} == {0}
    await eventually(lambda: membership.alive("a") and membership.alive("b"))

    def evicted() -> list[str]:
        requests = world["a"].worker.requests
        return [each.key.agent_id for each in requests if isinstance(each, agent_pb2.EvictAgentRequest)]

    await eventually(lambda: evicted() == ["moved"])


async def test_a_lease_that_was_asked_for_before_a_sleep_ends_in_it(world: World) -> None:
    """An answer may be read after it."""
    membership = world["a"].gateway.parts.cluster.membership  # type: ignore[union-attr]
    node = cluster_pb2.Node(name="a", ready=True)
    node.expires_in.FromSeconds(10)
    membership._read(cluster_pb2.SyncNodeResponse(name="a", nodes=[node]), cluster_keys.now() - 300)
    assert not membership.alive("a")


async def test_turns_of_a_node_without_others_still_reach_its_own_worker(world: World) -> None:
    world.ledger.lease = 0.0
    await eventually(lambda: world["a"].ready == 0)
    assert (await ask(world, "a", turn()))[-1].HasField("finished")
    assert world.turns() == {"a": 1, "b": 0}


async def test_a_worker_that_is_gone_takes_its_node_out_of_routing(world: World) -> None:
    await world["b"].worker.server.set_serving(False)
    await eventually(lambda: not world.ledger.nodes["b"].ready)
    await eventually(lambda: world["a"].ready == 1)
    await world["b"].worker.server.set_serving(True)
    await eventually(lambda: world["a"].ready == 2)


async def test_a_node_that_leaves_says_so_first(world: World) -> None:
    world.says("ada", last_on="b")
    await world["b"].leave()
    assert world.ledger.nodes["b"].draining
    await eventually(lambda: world["a"].ready == 1)
    assert (await ask(world, "a", turn()))[-1].HasField("finished")
    assert world.turns() == {"a": 1, "b": 0}


async def test_the_list_of_nodes_over_http(world: World) -> None:
    async with httpx.AsyncClient(base_url=world["a"].http, timeout=30) as http:
        told = (await http.get("/v1/cluster")).json()
        page = (await http.get("/metrics")).text
    assert (told["cluster_id"], told["node"]) == ("c1", "a")
    assert [node["name"] for node in told["nodes"]] == ["a", "b"]
    assert 0 < told["nodes"][0]["expires_in"] <= 10
    assert told["nodes"][1]["models"] == [{"model_id": "demo", "fingerprint": "f1", "loaded": True}]
    assert 'agentmem_gateway_cluster_nodes{state="ready"} 2.0' in page


async def test_the_list_of_nodes_by_the_command(world: World) -> None:
    """Each names whether it is ready."""
    await world["b"].worker.server.set_serving(False)
    await eventually(lambda: world["a"].ready == 1)
    status = ["cluster", "status", "--http", world["a"].gateway.addresses["http"]]
    shown = await asyncio.to_thread(CliRunner().invoke, main, status)
    told = await asyncio.to_thread(CliRunner().invoke, main, [*status, "--json"])
    assert shown.exit_code == 0, shown.output
    rows = [line.split() for line in shown.output.splitlines()]
    assert "cluster c1, asked at node a" in shown.output
    assert any(row[:3] == ["a", world["a"].address, "ready"] for row in rows)
    assert any(row[:4] == ["b", world["b"].address, "not", "ready"] for row in rows)
    assert [node["name"] for node in json.loads(told.stdout)["nodes"]] == ["a", "b"]


async def test_a_single_machine_has_no_list(world: World) -> None:
    async with (
        running(world["a"].run_dir.parent / "single") as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}", timeout=30) as http,
    ):
        answer = await http.get("/v1/cluster")
        assert "node" not in gateway.addresses
    assert answer.status_code == 404
    assert "of no cluster" in answer.text
