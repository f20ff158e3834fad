from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agentmem.checkup import State
from inference_service.doctor import checks
from inference_service.doctor.checks import container_bytes, memory
from inference_service.settings import WorkerSettings

GB = 10**9


@pytest.mark.parametrize(
    ("available", "usable", "container", "running", "state"),
    [
        (30 * GB, 16 * GB, None, False, State.OK),
        (10 * GB, 16 * GB, None, False, State.WARNING),
        (10 * GB, 16 * GB, None, True, State.OK),
        (10 * GB, 0, None, False, State.OK),
        (GB // 8, 16 * GB, None, False, State.PROBLEM),
        (30 * GB, 16 * GB, 4 * GB, False, State.WARNING),
        (30 * GB, 16 * GB, 20 * GB, False, State.OK),
        (30 * GB, 16 * GB, 2**60, False, State.OK),
    ],
)
def test_what_is_free(
    available: int, usable: int, container: int | None, running: bool, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = SimpleNamespace(total=32 * GB, available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: there)
    monkeypatch.setattr(checks, "container_bytes", lambda: container)
    monkeypatch.setattr(checks, "listens", lambda _: running)
    monkeypatch.setattr(checks, "usable_bytes", lambda: usable)
    monkeypatch.setattr(checks, "has_own_memory", lambda: False)
    (found,) = memory(WorkerSettings())
    assert found.state is state
    assert ("container" in found.found) == (container is not None and container < 32 * GB)


def test_the_tightest_limit_of_a_container(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert container_bytes(own, tmp_path) is None
    own.write_text("0::/a/b\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert container_bytes(own, tmp_path) is None
    (inner / "memory.max").write_text("max\n")
    assert container_bytes(own, tmp_path) is None
    (inner / "memory.max").write_text("9000\n")
    (inner.parent / "memory.max").write_text("5000\n")
    assert container_bytes(own, tmp_path) == 5000
    (tmp_path.parent / "memory.max").write_text("1\n")  # above the root is nothing of ours
    assert container_bytes(own, tmp_path) == 5000


def test_the_same_in_version_1(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("9:cpu:/x\n7:memory:/a\n")
    (tmp_path / "memory" / "a").mkdir(parents=True)
    (tmp_path / "memory" / "a" / "memory.limit_in_bytes").write_text("7000\n")
    assert container_bytes(own, tmp_path) == 7000
