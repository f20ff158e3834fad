from __future__ import annotations

import resource
from collections.abc import Iterable

import pytest

from agentmem.checkup import Finding, State
from agentmem.settings import load
from gateway.cli.doctor.here import limits
from gateway.cli.up_settings import UpSettings

from ....doors import ANY_PORT


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def settings(*arguments: str) -> UpSettings:
    return load(UpSettings, ["--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", "", *arguments])


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
