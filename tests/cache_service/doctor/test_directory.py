"""Whose a directory is, and who else can read it. Root may do everything: nothing rests on refusals."""

import fcntl
import os
from pathlib import Path

import pytest

from agentmem.process.checkup import Finding, State
from cache_service.doctor import data_directory, permissions
from cache_service.files import directory_lock


def only(findings: object) -> Finding:
    (finding,) = findings  # type: ignore[misc]
    return finding


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    (directory / "blocks" / "ab").mkdir(parents=True)
    for folder in (directory / "blocks", directory / "blocks" / "ab"):
        folder.chmod(0o700)
    (directory / "blocks" / "ab" / "x.safetensors").touch(mode=0o600)
    return directory


def test_a_directory_of_ones_own(data: Path) -> None:
    assert only(data_directory(data)).state is State.OK
    found = only(permissions(data))
    assert found.state is State.OK and "3 entries" in found.found


def test_one_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    absent = tmp_path / "a" / "b"
    assert "will be made" in only(data_directory(absent)).found
    assert only(permissions(absent)).state is State.OK
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    assert only(data_directory(tmp_path / "file" / "data")).state is State.PROBLEM
    assert only(data_directory(tmp_path / "file")).state is State.PROBLEM


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o770, 0o701])
def test_a_directory_that_is_open_to_others(data: Path, mode: int) -> None:
    data.chmod(mode)
    found = only(permissions(data))
    assert found.state is State.PROBLEM and f"{mode:04o}" in found.found
    assert found.advice == f"chmod -R go-rwx {data}"
    data.chmod(0o700)
    assert only(permissions(data)).state is State.OK


def test_a_file_that_is_open_in_a_closed_directory(data: Path) -> None:
    (data / "blocks" / "ab" / "x.safetensors").chmod(0o644)
    found = only(permissions(data))
    assert found.state is State.WARNING and "x.safetensors" in found.found and "1 of 3" in found.found


def test_a_link_has_no_mode_of_its_own(data: Path) -> None:
    (data / "blocks" / "ab" / "y").symlink_to("/etc/hostname")
    assert only(permissions(data)).state is State.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_what_is_another_users(data: Path) -> None:
    os.chown(data / "blocks" / "ab" / "x.safetensors", 4242, -1)
    found = only(permissions(data))
    assert found.state is State.PROBLEM and found.advice.startswith("chown -R ")
    os.chown(data, 4242, -1)
    found = only(data_directory(data))
    assert found.state is State.PROBLEM and "4242" in found.found


def test_a_shared_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert only(data_directory(tmp_path)).state is State.PROBLEM


def test_whether_a_store_has_it(data: Path) -> None:
    assert not directory_lock.is_held(data)
    assert not (data / "lock").exists()
    with (data / "lock").open("w") as lock:
        assert not directory_lock.is_held(data)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert directory_lock.is_held(data)
    with (data / "lock").open() as other:  # another doctor
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not directory_lock.is_held(data)
