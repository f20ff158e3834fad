"""`agentmem cluster status` against a running cluster."""

from __future__ import annotations

import asyncio
import json

from click.testing import CliRunner, Result

from gateway.cli.main import main
from tests.gateway.cluster.world import cluster, eventually


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
