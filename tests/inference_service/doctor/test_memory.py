from types import SimpleNamespace

import psutil
import pytest

from agentmem.process.checkup import State
from inference_service.doctor import checks
from inference_service.doctor.checks import memory
from inference_service.engine import host_memory
from inference_service.settings import WorkerSettings

GB = 10**9


@pytest.mark.parametrize(
    ("available", "wanted", "gpu", "running", "state"),
    [
        (30 * GB, 16 * GB, None, False, State.OK),
        (10 * GB, 16 * GB, None, False, State.WARNING),
        (16 * GB, 16 * GB, None, False, State.WARNING),
        (10 * GB, 16 * GB, None, True, State.OK),
        (10 * GB, 16 * GB, 40 * GB, False, State.OK),
        (30 * GB, 16 * GB, 10 * GB, False, State.WARNING),
        (GB // 8, 16 * GB, 40 * GB, False, State.PROBLEM),
    ],
)
def test_what_is_free(
    available: int, wanted: int, gpu: int | None, running: bool, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = SimpleNamespace(total=32 * GB, available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: there)
    monkeypatch.setattr(host_memory, "limits", list)
    monkeypatch.setattr(checks, "listens", lambda _: running)
    monkeypatch.setattr(checks, "share_bytes", lambda: wanted)
    monkeypatch.setattr(checks, "default_floor", lambda: 2 * GB)
    monkeypatch.setattr(checks, "has_own_memory", lambda: gpu is not None)
    monkeypatch.setattr(checks, "free_bytes", lambda: available if gpu is None else gpu)
    (found,) = memory(WorkerSettings())
    assert found.state is state
    assert ("GPU" in found.found) == (gpu is not None)


@pytest.mark.parametrize(("gpu", "wanted"), [(False, 5 * GB), (True, 3 * GB)], ids=["host", "gpu"])
def test_what_is_set_is_wanted(gpu: bool, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for arrays counts only where attention takes them."""
    monkeypatch.setattr(checks, "listens", lambda _: False)
    monkeypatch.setattr(checks, "share_bytes", lambda: 100 * GB)
    monkeypatch.setattr(checks, "has_own_memory", lambda: gpu)
    monkeypatch.setattr(checks, "free_bytes", lambda: 0)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 16 * GB)
    (found,) = memory(WorkerSettings(pool_bytes=3 * GB, batch_bytes=2 * GB))
    assert (found.state, found.facts["wanted_bytes"]) == (State.WARNING, wanted)
    assert ("batch_bytes" in found.advice) != gpu
