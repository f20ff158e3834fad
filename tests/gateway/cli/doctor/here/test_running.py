from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agentmem.checkup import State
from gateway.cli.doctor.here import running


def test_a_worker_that_is_not_ready() -> None:
    found = running.Running({"store": "", "worker": "it is loading", "gateway": ""}, {"http": "x", "grpc": "y"})
    judged = running.judged(found)
    assert judged.state is State.WARNING and "it is loading" in judged.found
    assert running.judged(found._replace(unready=dict.fromkeys(found.unready, ""))).state is State.OK


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
        assert await running.look(run_dir) == running.NOTHING
    assert running.judged(running.NOTHING).state is State.OK


async def test_who_does_not_answer_is_named(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(run_dir / "store.sock"))
        silent.listen()
        found = await running.look(run_dir)
    assert found.unready == {"store": "the store did not answer within 0.2 s"}
