"""The command as its user sees it, where there is little to see. `tests/system/test_top.py` has the rest."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import aclosing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.console import Mistake
from agentmem.process.sockets import parse_address
from gateway import scraping
from gateway.app import Gateway
from gateway.cli.client import Client
from gateway.cli.main import main
from gateway.cli.top.command import addresses, measure, until_stopped
from gateway.cli.top.measure import Figures
from gateway.scraping import Service
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured


def test_each_process_has_its_page() -> None:
    assert addresses("127.0.0.1:9464", None, None) == {
        "gateway": "127.0.0.1:9464",
        "worker": "127.0.0.1:9465",
        "store": "127.0.0.1:9466",
    }
    assert addresses("[::1]:65535", "a:1", "[::1]:2") == {"gateway": "[::1]:65535", "worker": "a:1", "store": "[::1]:2"}
    assert parse_address(addresses("[::1]:5", None, "b:2")["worker"]) == ("::1", 6)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--metrics", "9464"], "--metrics: '9464' is not HOST:PORT"),
        (["--metrics", ""], "--metrics: '' is not HOST:PORT"),
        (["--metrics", "127.0.0.1:0"], "--metrics: 127.0.0.1:0 has no port that can be read"),
        (["--metrics", "127.0.0.1:65534"], "--metrics: worker and store have the next two ports"),
        (["--store-metrics", "x"], "--store-metrics: 'x' is not HOST:PORT"),
        (["--worker-metrics", "x:0"], "--worker-metrics: x:0 has no port that can be read"),
        (["--gateway", "x"], "--gateway: 'x' is not HOST:PORT"),
        (["--interval", "0"], "Invalid value for '--interval'"),
        (["--agents", "-1"], "Invalid value for '--agents'"),
        (["--client-key", "x"], "--client-cert and --client-key go together"),
    ],
)
def test_what_there_is_to_mend_is_said_before_anything_is_read(arguments: list[str], told: str) -> None:
    said = CliRunner().invoke(main, ["top", *arguments])
    assert said.exit_code == 2
    assert f"Error: {told}" in said.stderr
    assert said.stdout == ""


def test_a_mistake_is_one() -> None:
    with pytest.raises(Mistake):
        addresses("127.0.0.1:65535", "a:1", None)


@pytest.mark.parametrize("flags", [["--once"], [], ["--once", "--json"]])
def test_where_nothing_answers_that_is_said_and_what_to_do(flags: list[str]) -> None:
    nowhere = ["--gateway", "127.0.0.1:1", "--metrics", "127.0.0.1:2"]
    said = CliRunner().invoke(main, ["top", *nowhere, "--interval", "0.2", *flags])
    assert said.exit_code == 1
    assert said.stderr.startswith("Error: nothing answers; start Agentmem with `agentmem up`")
    if "--json" in flags:
        (line,) = said.stdout.splitlines()
        assert [one["state"] for one in json.loads(line)["processes"]] == ["down"] * 3
    else:
        assert "store: nothing listens at 127.0.0.1:4" in said.stdout
        assert said.stdout.count("no gateway answers at 127.0.0.1:1") == 1


def test_a_locale_that_lacks_letters_costs_only_these() -> None:
    nowhere = ["--gateway", "127.0.0.1:1", "--metrics", "127.0.0.1:2", "--interval", "0.2"]
    said = CliRunner(charset="iso-8859-1").invoke(main, ["top", *nowhere])
    assert said.exit_code == 1
    assert "KV: loads ? · stores ?" in said.stdout


NOWHERE: dict[Service, str] = {"gateway": "127.0.0.1:1", "worker": "127.0.0.1:1", "store": "127.0.0.1:1"}


async def test_figures_come_until_they_are_not_wanted(worker: ScriptedWorker, gateway: Gateway) -> None:
    client = Client(gateway.addresses["grpc"])
    async with aclosing(measure(client, NOWHERE, 0.2, 5)) as measured:
        told = [await anext(measured) for _ in range(3)]
    assert [bool(figures["interval_seconds"]) for figures in told] == [False, True, True]
    assert all(figures["models"] for figures in told)
    assert all(one["state"] == "down" for one in told[-1]["processes"])


async def test_a_key_is_asked_for_and_shown(worker: ScriptedWorker, run_dir: Path) -> None:
    key = add_key(run_dir)
    told: list[Figures] = []
    async with secured(run_dir) as gateway:
        address = gateway.addresses["grpc"]
        for client in (Client(address), Client(address, key)):
            async with aclosing(measure(client, NOWHERE, 1.0, 5)) as measured:
                told.append(await anext(measured))
    assert told[0]["models"] == []
    assert told[0]["models_error"] is not None
    assert told[0]["models_error"].startswith(f"the gateway at {address} asks for a key; give one in AGENTMEM_API_KEY")
    assert told[0]["agents_error"] == told[0]["models_error"]
    assert told[1]["models_error"] is None
    assert [one["model_id"] for one in told[1]["models"]] == [one.model_id for one in worker.models]


def test_a_page_that_hangs_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command, with its loop, ends while the page would be waited for for an hour."""
    monkeypatch.setattr(scraping, "PATIENCE", 3600.0)

    async def leave(silent: socket.socket) -> object:
        pages: dict[Service, str] = {**NOWHERE, "store": f"127.0.0.1:{silent.getsockname()[1]}"}

        async def read() -> Figures:
            return await anext(measure(Client("127.0.0.1:1"), pages, 1.0, 0))

        watching = asyncio.create_task(until_stopped(read()))
        asked, _ = await asyncio.get_running_loop().sock_accept(silent)
        with asked:
            await asyncio.get_running_loop().sock_recv(asked, 1000)
            os.kill(os.getpid(), signal.SIGINT)
            return await watching

    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        assert asyncio.run(leave(silent)) is None


async def test_work_that_is_done_or_fails_says_so() -> None:
    async def work() -> int:
        return 5

    async def fail() -> None:
        raise ValueError("as it was")

    assert await until_stopped(work()) == 5
    with pytest.raises(ValueError, match="as it was"):
        await until_stopped(fail())
