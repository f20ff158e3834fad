"""The store's half as a process: `python -m cache_service.doctor`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.process.checkup import Finding, State, parse

from ..process import ready
from .test_database import tree


def half(*arguments: str, wrapper: tuple[str, ...] = (), **environment: str) -> dict[str, list[Finding]]:
    """What it found, by check."""
    command = [*wrapper, sys.executable, "-m", "cache_service.doctor", *arguments]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    found: dict[str, list[Finding]] = {}
    for line in told.stdout.splitlines():
        match parse(line):
            case str(check):
                found.setdefault(check, [])
            case Finding() as finding:
                found.setdefault(finding.check, []).append(finding)
    return found


def states(found: dict[str, list[Finding]], check: str) -> set[State]:
    return {finding.state for finding in found[check]}


@pytest.mark.slow
async def test_a_directory_that_a_store_uses_and_that_none_uses(data: Path) -> None:
    before = tree(data)
    at_rest = half("--data", str(data))
    assert tree(data) == before, "it changes nothing"
    async with ready(data):
        running = half("--data", str(data))
    for found in (at_rest, running):
        assert all(findings for findings in found.values())
        assert not any(finding.state is State.PROBLEM for findings in found.values() for finding in findings)
        assert "3 agents" in found["database"][0].found


def test_settings_that_the_store_would_refuse(tmp_path: Path) -> None:
    found = half("--data", str(tmp_path), AGENTMEM_STORE_WARM_BYTES="many")
    assert list(found) == ["store settings"] and states(found, "store settings") == {State.PROBLEM}


@pytest.mark.slow
def test_somebody_elses_directory(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    found = half("--data", str(tmp_path))
    assert list(found) == ["data directory"] and states(found, "data directory") == {State.PROBLEM}
    assert os.listdir(tmp_path) == ["letters"]


def test_a_full_tmpfs(tmp_path: Path) -> None:
    """A file system of its own, mounted where nobody else sees it."""
    mount = (
        f"mount -t tmpfs -o size=1m,mode=700 tmpfs {tmp_path} && head -c 2M /dev/zero > {tmp_path}/lock 2>/dev/null; "
    )
    wrapper = ("unshare", "-rm", "sh", "-c")
    if subprocess.run([*wrapper, f"mount -t tmpfs tmpfs {tmp_path}"], capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    found = half("--data", str(tmp_path), wrapper=(*wrapper, f'{mount} exec "$@"', "sh"))
    assert states(found, "disk space") == {State.PROBLEM}
    assert states(found, "file system") == {State.WARNING}
    assert states(found, "disk speed") == {State.UNKNOWN}
