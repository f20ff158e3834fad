from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from agentmem.checkup import Finding, State
from agentmem.settings import load
from gateway.cli.doctor.here import running
from gateway.cli.doctor.here.ports import is_agentmem, ports
from gateway.cli.up_settings import UpSettings
from gateway.process import Gateway

from ....doors import ANY_PORT
from ....scripted import ScriptedWorker


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that someone listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def settings(*arguments: str) -> UpSettings:
    return load(UpSettings, ["--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", "", *arguments])


def test_ports_that_are_free_or_anybodys() -> None:
    found = only(ports(settings(), running.NOTHING))
    assert found.state is State.OK and found.found == "free: any (--http), any (--grpc)"


@pytest.mark.parametrize("flag", ["--http", "--grpc", "--metrics"])
def test_a_port_that_is_taken(flag: str, taken: int) -> None:
    found = [
        each for each in ports(settings(flag, f"127.0.0.1:{taken}"), running.NOTHING) if each.state is not State.OK
    ]
    assert len(found) == 1 and found[0].state is State.PROBLEM
    assert found[0].found.startswith(f"{flag} 127.0.0.1:{taken}") and f"process {os.getpid()}" in found[0].found
    assert found[0].facts == {"port": taken}


def test_a_port_that_is_wanted_twice_or_beyond_the_last(taken: int) -> None:
    twice = settings("--http", f"127.0.0.1:{taken}", "--grpc", f"127.0.0.1:{taken}")
    assert [each.state for each in ports(twice, running.NOTHING)] == [State.PROBLEM] * 2
    beyond = [each for each in ports(settings("--metrics", "127.0.0.1:65534"), running.NOTHING)]
    assert any(each.state is State.PROBLEM and "65533" in each.found for each in beyond)


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("/opt/agentmem/bin/agentmem-gateway --http 127.0.0.1:8080", True),
        ("python /home/me/agentmem/.venv/bin/agentmem up", True),
        ("python -m agentmem.parent 3 10 gateway", True),
        ("/home/me/agentmem/.venv/bin/python -m http.server --directory agentmem", False),
    ],
)
def test_who_is_another_agentmem(command: str, ours: bool) -> None:
    assert is_agentmem(command.split()) == ours


async def test_a_gateway_that_runs_holds_its_own_ports(gateway: Gateway, worker: ScriptedWorker, run_dir: Path) -> None:
    found = await running.look(run_dir)
    assert set(found.unready) == {"worker", "gateway"} and found.addresses == gateway.addresses
    assert running.judged(found).state is State.WARNING and "no store" in running.judged(found).found
    doors = settings("--http", gateway.addresses["http"], "--grpc", gateway.addresses["grpc"])
    held = list(ports(doors, found))
    assert [each.state for each in held] == [State.OK] and "runs here, which is" in held[0].found
    strangers = list(ports(doors, running.NOTHING))
    assert [each.state for each in strangers] == [State.PROBLEM] * 2
