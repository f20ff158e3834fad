import os
import sys
from pathlib import Path

import pytest

from agentmem.checkup import State
from cache_service.doctor import speed
from cache_service.doctor.speed import Speed, judged, measure, measured

FAST = Speed(write=500e6, read=2e9, commit_seconds=0.001, cached=False, bytes=1 << 26)


def test_nothing_is_left_behind_and_nothing_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_MOST_SECONDS", 600.0)  # a busy disk is measured to the end, too
    names: list[list[str]] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda *arguments: (names.append(os.listdir(tmp_path)), write(*arguments))[1])
    found = measure(tmp_path, 2)
    assert names == [[], []], "not even while it measures"
    assert os.listdir(tmp_path) == []
    assert found.bytes == 2 * (8 << 20)
    assert min(found.write, found.read, found.commit_seconds) > 0


def test_what_is_absent_is_measured_at_its_parent(tmp_path: Path) -> None:
    (found,) = measured(tmp_path / "a" / "b", 0)
    assert found.facts["measured_bytes"]
    assert os.listdir(tmp_path) == []


def test_what_has_to_stay_free_is_not_taken(tmp_path: Path) -> None:
    (found,) = measured(tmp_path, 1 << 60)
    assert found.state is State.UNKNOWN and "too little room" in found.found


def test_what_the_figures_mean() -> None:
    assert judged(FAST).state is State.OK
    for slow in (FAST._replace(write=1e6), FAST._replace(read=1e6), FAST._replace(commit_seconds=1.0)):
        found = judged(slow)
        assert found.state is State.WARNING and "SSD" in found.advice


def test_reads_from_the_page_cache_are_called_so() -> None:
    assert "page cache" not in judged(FAST).found
    assert "from the page cache" in judged(FAST._replace(cached=True)).found
    assert "perhaps from the page cache" in judged(FAST._replace(cached=None)).found


def test_a_cache_that_keeps_the_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None, raising=False)
    assert measure(tmp_path, 1).cached is not False


def test_a_place_where_nothing_can_be_written() -> None:
    (found,) = measured(Path("/proc/self"), 0)
    assert found.state in (State.PROBLEM, State.UNKNOWN) and found.advice


@pytest.mark.skipif(sys.platform != "linux" or not os.path.isdir("/dev/shm"), reason="needs a tmpfs at /dev/shm")
def test_memory_is_never_taken_for_a_disk() -> None:
    assert measure(Path("/dev/shm"), 1).cached is not False
