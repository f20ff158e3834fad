"""The gateway's checks on real sockets, ports and directories."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentmem.checkup import Finding, State
from agentmem.server import MAX_SOCKET_PATH_BYTES
from agentmem.settings import load
from gateway.cli.doctor.here import limits, running
from gateway.cli.doctor.here.ports import ports
from gateway.cli.doctor.here.sockets import run_directory
from gateway.cli.up_settings import UpSettings
from gateway.process import Gateway

from ...doors import ANY_PORT
from ...scripted import ScriptedWorker


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that someone listens on, and so are none of the next two."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
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


async def test_a_gateway_that_runs_holds_its_own_ports(gateway: Gateway, worker: ScriptedWorker, run_dir: Path) -> None:
    found = await running.look(run_dir)
    assert set(found.unready) == {"worker", "gateway"} and found.addresses == gateway.addresses
    assert running.judged(found).state is State.WARNING and "no store" in running.judged(found).found
    doors = settings("--http", gateway.addresses["http"], "--grpc", gateway.addresses["grpc"])
    held = list(ports(doors, found))
    assert [each.state for each in held] == [State.OK] and "runs here, which is" in held[0].found
    strangers = list(ports(doors, running.NOTHING))
    assert [each.state for each in strangers] == [State.PROBLEM] * 2


async def test_a_worker_that_is_not_ready(worker: ScriptedWorker, run_dir: Path) -> None:
    found = running.Running({"store": "", "worker": "it is loading", "gateway": ""}, {"http": "x", "grpc": "y"})
    judged = running.judged(found)
    assert judged.state is State.WARNING and "it is loading" in judged.found
    assert running.judged(found._replace(unready=dict.fromkeys(found.unready, ""))).state is State.OK


async def test_addresses_that_a_killed_gateway_left(run_dir: Path, taken: int) -> None:
    for content in ("", "{", "[]", "{}", '{"http": "127.0.0.1:1", "grpc": "127.0.0.1:1"}'):
        (run_dir / "gateway.json").write_text(content)
        assert await running.look(run_dir) == running.NOTHING
    assert running.judged(running.NOTHING).state is State.OK


def test_a_run_directory_of_ones_own(run_dir: Path) -> None:
    assert only(run_directory(run_dir)).state is State.OK
    assert "will be made" in only(run_directory(run_dir / "a" / "b")).found
    assert os.listdir(run_dir) == []


@pytest.mark.parametrize(("mode", "state"), [(0o755, State.WARNING), (0o770, State.PROBLEM), (0o777, State.PROBLEM)])
def test_a_run_directory_that_is_open_to_others(run_dir: Path, mode: int, state: State) -> None:
    run_dir.chmod(mode)
    found = only(run_directory(run_dir))
    assert found.state is state and found.advice == f"chmod 700 {run_dir}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories to others")
def test_another_users_run_directory(run_dir: Path) -> None:
    os.chown(run_dir, 4242, -1)
    assert only(run_directory(run_dir)).state is State.PROBLEM


def test_how_long_a_run_directory_may_be(run_dir: Path) -> None:
    longest = MAX_SOCKET_PATH_BYTES - len("/worker.sock")
    fits = run_dir / ("x" * (longest - len(os.fsencode(run_dir)) - 1))
    assert only(run_directory(fits)).state is State.OK
    too_long, _ = run_directory(Path(f"{fits}x"))
    assert too_long.state is State.PROBLEM and too_long.facts == {"bytes_over": 1}
    in_bytes, _ = run_directory(Path(f"{str(fits)[:-1]}é"))
    assert in_bytes.facts == {"bytes_over": 1}
    file = run_dir / "file"
    file.touch()
    assert only(run_directory(file)).state is only(run_directory(file / "x")).state is State.PROBLEM


@pytest.mark.parametrize(
    ("limit", "state"),
    [(64, State.PROBLEM), (256, State.WARNING), (1024, State.OK), (4096, State.OK), (resource.RLIM_INFINITY, State.OK)],
)
def test_open_files(limit: int, state: State) -> None:
    found = limits.judged(limit, 1024)
    assert found.state is state
    assert bool(found.advice) == (limit in (64, 256, 1024))


def test_open_files_of_this_process() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert only(limits.open_files(settings())).facts["limit"] == soft
