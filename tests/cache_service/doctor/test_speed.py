import os
from pathlib import Path

import pytest

from agentmem.process.checkup import State
from cache_service import doctor
from cache_service.doctor import disk_speed, measure


def test_nothing_is_left_behind_and_nothing_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MOST_SECONDS", 600.0)  # a busy disk is measured to the end, too
    names: list[list[str]] = []
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *arguments: (names.append(os.listdir(tmp_path)), write(*arguments))[1])
    assert min(measure(tmp_path, 2)) > 0
    assert len(names) > 2 and not any(names), "not even while it measures"
    assert os.listdir(tmp_path) == []


def test_what_is_absent_is_measured_at_its_parent(tmp_path: Path) -> None:
    (found,) = disk_speed(tmp_path / "a" / "b", 0)
    assert found.facts["write_bytes_per_second"] > 0
    assert os.listdir(tmp_path) == []


def test_what_has_to_stay_free_is_not_taken(tmp_path: Path) -> None:
    (found,) = disk_speed(tmp_path, 1 << 60)
    assert found.state is State.UNKNOWN and "too little room" in found.found


@pytest.mark.parametrize(
    ("write", "read", "commit", "state"),
    [
        (500e6, 2e9, 0.001, State.OK),
        (1e6, 2e9, 0.001, State.WARNING),
        (500e6, 1e6, 0.001, State.WARNING),
        (500e6, 2e9, 1.0, State.WARNING),
    ],
)
def test_what_the_figures_mean(
    write: float, read: float, commit: float, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "measure", lambda *_: (write, read, commit))
    (found,) = disk_speed(tmp_path, 0)
    assert found.state is state and ("SSD" in found.advice) == (state is State.WARNING)


def test_a_place_where_nothing_can_be_written() -> None:
    (found,) = disk_speed(Path("/proc/self"), 0)
    assert found.state in (State.PROBLEM, State.UNKNOWN) and found.advice
