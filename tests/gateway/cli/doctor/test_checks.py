"""The gateway's checks: limits, the run directory, what runs, ports."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from agentmem.process.checkup import Finding, State
from agentmem.process.settings import load
from agentmem.process.sockets import MAX_SOCKET_PATH_BYTES
from gateway.app import Gateway
from gateway.cli.doctor import checks
from gateway.cli.doctor.checks import (
    Running,
    judge_running,
    open_files,
    ports,
    run_directory,
    running,
)
from gateway.cli.up.settings import UpSettings

from ...running import ANY_PORT
from ...scripted import ScriptedWorker

NOTHING = Running({}, {})


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def settings(*arguments: str) -> UpSettings:
    return load(UpSettings, ["--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", "", *arguments])


@pytest.mark.parametrize(
    ("limit", "state"),
    [(64, State.PROBLEM), (256, State.WARNING), (1024, State.OK), (4096, State.OK), (resource.RLIM_INFINITY, State.OK)],
)
def test_open_files(limit: int, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_GATEWAY_MAX_CONNECTIONS", "512")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found = only(open_files(settings()))
    assert found.state is state
    assert bool(found.advice) == (limit in (64, 256, 1024))


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
    assert too_long.state is State.PROBLEM and " 1 bytes longer" in too_long.found
    in_bytes, _ = run_directory(Path(f"{str(fits)[:-1]}é"))
    assert " 1 bytes longer" in in_bytes.found
    file = run_dir / "file"
    file.touch()
    assert only(run_directory(file)).state is only(run_directory(file / "x")).state is State.PROBLEM


def test_a_worker_that_is_not_ready() -> None:
    found = Running({"store": "", "worker": "it is loading", "gateway": ""}, {"http": "x", "grpc": "y"})
    judged = judge_running(found)
    assert judged.state is State.WARNING and "it is loading" in judged.found
    assert judge_running(found._replace(unready=dict.fromkeys(found.unready, ""))).state is State.OK


async def test_addresses_that_a_killed_gateway_left(run_dir: Path) -> None:
    for content in (
        "",
        "{",
        "[]",
        "{}",
        '{"http": 1, "grpc": 2}',
        '{"http": "x", "grpc": "y"}',
        '{"http": "127.0.0.1:1", "grpc": "127.0.0.1:1"}',
    ):
        (run_dir / "gateway.json").write_text(content)
        assert await running(run_dir) == NOTHING
    assert judge_running(NOTHING).state is State.OK


async def test_who_does_not_answer_is_named(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(run_dir / "store.sock"))
        silent.listen()
        found = await running(run_dir)
    assert found.unready == {"store": "the store did not answer within 0.2 s"}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that someone listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_ports_that_are_free_or_anybodys() -> None:
    found = only(ports(settings(), NOTHING))
    assert found.state is State.OK and found.found == "free: any (--http), any (--grpc)"


@pytest.mark.parametrize("flag", ["--http", "--grpc", "--metrics"])
def test_a_port_that_is_taken(flag: str, taken: int) -> None:
    every = ports(settings(flag, f"127.0.0.1:{taken}"), NOTHING)
    found = [each for each in every if f"listen on 127.0.0.1:{taken}:" in each.found]  # The next may be others'.
    assert [each.state for each in found] == [State.PROBLEM]
    assert found[0].found.startswith(f"{flag} 127.0.0.1:{taken}") and f"process {os.getpid()}" in found[0].found


def test_a_port_that_is_wanted_twice_or_beyond_the_last(taken: int) -> None:
    twice = settings("--http", f"127.0.0.1:{taken}", "--grpc", f"127.0.0.1:{taken}")
    assert [each.state for each in ports(twice, NOTHING)] == [State.PROBLEM] * 2
    beyond = [each for each in ports(settings("--metrics", "127.0.0.1:65534"), NOTHING)]
    assert any(each.state is State.PROBLEM and "65533" in each.found for each in beyond)


async def test_a_gateway_that_runs_holds_its_own_ports(gateway: Gateway, worker: ScriptedWorker, run_dir: Path) -> None:
    found = await running(run_dir)
    assert set(found.unready) == {"worker", "gateway"} and found.addresses == gateway.addresses
    assert judge_running(found).state is State.WARNING and "no store" in judge_running(found).found
    listeners = settings("--http", gateway.addresses["http"], "--grpc", gateway.addresses["grpc"])
    held = list(ports(listeners, found))
    assert [each.state for each in held] == [State.OK] and "runs here" in held[0].found
    strangers = list(ports(listeners, NOTHING))
    assert [each.state for each in strangers] == [State.PROBLEM] * 2
