"""`agentmem cluster status` and `agentmem top` against a running cluster."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

from click.testing import CliRunner, Result

from gateway.cli.client import Client
from gateway.cli.main import main
from gateway.cli.top.command import measure
from gateway.cli.top.sources import HttpDoor
from gateway.scraping import Service
from tests.gateway.cluster.world import cluster, eventually
from tests.system.stack import free_port


async def status(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["cluster", "status", *arguments])


async def test_the_nodes_as_a_table_and_as_json() -> None:
    async with cluster("a", "b") as world:
        http = world["a"].gateway.addresses["http"]
        await world["b"].worker.server.set_serving(False)
        await eventually(lambda: world["a"].ready == 1)
        shown = await status("--http", http)
        told = await status("--http", http, "--json")
    assert shown.exit_code == 0, shown.output
    rows = [line.split() for line in shown.output.splitlines()]
    assert "cluster c1, asked at node a" in shown.output
    assert any(row[:3] == ["a", world["a"].address, "ready"] for row in rows)
    assert any(row[:4] == ["b", world["b"].address, "not", "ready"] for row in rows)
    assert [node["name"] for node in json.loads(told.stdout)["nodes"]] == ["a", "b"]


async def test_top_shows_the_nodes() -> None:
    async with cluster("a", "b") as world:
        await world["b"].worker.server.set_serving(False)
        await eventually(lambda: world["a"].ready == 1)
        at = world["a"].gateway.addresses
        pages: dict[Service, str] = {"gateway": at["metrics"], "worker": "127.0.0.1:1", "store": "127.0.0.1:1"}
        async with aclosing(measure(Client(at["grpc"]), pages, 0.2, 0, HttpDoor(at["http"]))) as measured:
            first, second = [await anext(measured) for _ in range(2)]
    assert (first["nodes"], second["nodes_error"]) == (None, None), "before the page was read nobody is asked"
    states = {node["name"]: (node["state"], node["models"]) for node in second["nodes"]}
    assert states == {"a": ("ready", ["demo"]), "b": ("not_ready", ["demo"])}


async def test_where_nothing_answers() -> None:
    port = free_port()
    refused = await status("--http", f"127.0.0.1:{port}")
    assert (refused.exit_code, "no gateway answers" in refused.output) == (1, True)
