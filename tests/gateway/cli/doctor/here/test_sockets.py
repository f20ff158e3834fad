from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from agentmem.checkup import Finding, State
from agentmem.socket_guard import MAX_SOCKET_PATH_BYTES
from gateway.cli.doctor.here.sockets import run_directory


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


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
