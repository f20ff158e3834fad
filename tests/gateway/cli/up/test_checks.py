from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from agentmem.console import Mistake
from agentmem.process.checkup import State, ok
from agentmem.process.settings import load
from gateway.app import Gateway
from gateway.cli.up import checks as subject
from gateway.cli.up.checks import judge_running, open_files, ports, running
from gateway.cli.up.settings import UpSettings

from ...running import ANY_PORT
from ...scripted import ScriptedWorker

DOORS = ["--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", ""]


def settings(*arguments: str) -> UpSettings:
    return load(UpSettings, [*DOORS, *arguments])


@pytest.mark.parametrize(
    ("limit", "state"),
    [(64, State.PROBLEM), (256, State.WARNING), (1024, State.OK), (4096, State.OK), (resource.RLIM_INFINITY, State.OK)],
)
def test_open_files(limit: int, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_GATEWAY_MAX_CONNECTIONS", "512")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    (found,) = open_files(settings())
    assert found.state is state
    assert bool(found.advice) == (limit in (64, 256, 1024))


async def test_silent_service_is_named(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_ANSWER_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(run_dir / "store.sock"))
        silent.listen()
        found = await running(run_dir)
    assert found == {"store": "the store did not answer within 0.2 s"}
    assert judge_running(found).state is State.WARNING and "did not answer" in judge_running(found).found


async def test_gateway_without_a_store(gateway: Gateway, worker: ScriptedWorker, run_dir: Path) -> None:
    found = await running(run_dir)
    assert judge_running({}).state is State.OK and set(found) == {"worker", "gateway"}
    assert judge_running(found).state is State.WARNING and "no store" in judge_running(found).found
    assert judge_running(dict.fromkeys(("store", "worker", "gateway"), "")).state is State.OK


def test_taken_port_is_refused_unless_services_run_here(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as store:
        http = f"127.0.0.1:{server.getsockname()[1]}"
        given = settings("--http", http, "--run-dir", str(run_dir))
        with pytest.raises(Mistake, match=f"--http {http}: cannot listen on {http}: .*; choose another port"):
            ports(given)
        store.bind(str(run_dir / "store.sock"))
        store.listen()
        assert ports(given) == [ok("not checked while services run here")]
