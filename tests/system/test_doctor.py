"""`agentmem doctor` on a data directory that store, worker and gateway are serving."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agentmem.process.checkup import State
from agentmem.process.settings import load
from gateway.cli.doctor.checks import Running, judge_running, ports, running
from gateway.cli.up.settings import UpSettings
from tests.system.stack import Stack

NOTHING = Running({}, {})


def names(data: Path) -> dict[str, int]:
    """Files and their sizes, but for SQLite's, which it keeps as it likes."""
    files = (path for path in data.rglob("*") if not path.name.startswith(("store.db-", "warm.db-")))
    return {str(path): path.stat().st_size for path in files if path.is_file()}


async def doctor(stack: Stack, *arguments: str) -> tuple[int | None, dict[str, list[dict[str, Any]]]]:
    """Its exit status, and what it found, by check."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", "doctor", "--json"),
        *("--data", str(stack.data), "--run-dir", str(stack.run), *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(told)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return process.returncode, found


@pytest.mark.slow
async def test_while_all_runs(stack: Stack) -> None:
    await stack.renew("gateway")
    client = await stack.client("gateway")
    assert (await client.say("ada", "hello")).finished.durable
    await stack.on_disk("ada")
    held = [f"127.0.0.1:{stack.ports[name]}" for name in ("http", "grpc", "gateway")]
    before = names(stack.data)
    status, found = await doctor(stack, "--http", held[0], "--grpc", held[1], "--metrics", held[2])
    assert names(stack.data) == before
    assert status == 0, found
    assert found["running"][0]["facts"] == dict.fromkeys(("store", "worker", "gateway"), "ready")
    (ours,) = (each for each in found["ports"] if "runs here" in each["found"])
    assert all(address.rpartition(":")[2] in ours["found"] for address in held)
    assert "1 agent" in found["database"][0]["found"]
    assert "besides a worker that runs" in found["memory"][0]["found"]
    assert (await client.say("ada", "again")).finished.durable


async def test_ports_of_metrics_are_known_by_their_pages(stack: Stack) -> None:
    found = await running(stack.run)
    listeners = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    for name, behind in (("worker", 1), ("store", 2)):
        settings = load(UpSettings, [*listeners, "--metrics", f"127.0.0.1:{stack.ports[name] - behind}"])
        taken = f"cannot listen on 127.0.0.1:{stack.ports[name]}:"
        ours, strangers = await asyncio.to_thread(
            lambda settings=settings: [[*ports(settings, by)] for by in (found, NOTHING)]
        )
        assert not [each for each in ours if taken in each.found]
        assert [each.state for each in strangers if taken in each.found] == [State.PROBLEM]


@pytest.mark.kills
async def test_a_service_that_is_gone(stack: Stack) -> None:
    stack.kill("worker")
    found = judge_running(await running(stack.run))
    assert found.state is State.WARNING and "no worker" in found.found
    assert os.path.exists(stack.run / "worker.sock"), "a socket alone is no worker"
