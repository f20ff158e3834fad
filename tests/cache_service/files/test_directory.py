"""Paths of the data directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentmem.kv.blockfile import FileKind, FileName
from cache_service.files.directory import DataDirectory, DirectoryUnusable
from cache_service.files.disk import open_regular, size_of
from tests.cache_service import kv
from tests.cache_service.conftest import running
from tests.cache_service.offline.directory import everything, fill


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory(tmp_path / "d")
    directory.acquire()
    directory.prepare()
    yield directory
    directory.release()


NAME = FileName(FileKind.WINDOW, bytes(range(32)))


def test_a_directory_has_one_holder_at_a_time(directory: DataDirectory) -> None:
    other = DataDirectory(directory.root)
    with pytest.raises(DirectoryUnusable, match="another store"):
        other.acquire()
    directory.release()
    other.acquire()
    other.release()


def test_only_names_directly_in_staging_are_staged(directory: DataDirectory) -> None:
    assert directory.is_staged(directory.new_staging_path(NAME))
    for path in (
        directory.root / "store.db",
        directory.staging,
        directory.staging / "..",
        directory.staging / "a" / "b",
        directory.staging / ".." / "store.db",
        directory.staging / ".." / "staging" / ".." / "store.db",
        Path("staging/a"),
        Path("/"),
    ):
        assert not directory.is_staged(path), path
    os.symlink(directory.root, directory.staging / "up")
    assert not directory.is_staged(directory.staging / "up" / "store.db")


def test_a_place_is_found_again_and_other_files_are_not(directory: DataDirectory) -> None:
    staged = directory.new_staging_path(NAME)
    staged.write_bytes(b"kv")
    directory.place(staged, NAME)
    (directory.path(NAME).parent / "notes.txt").write_bytes(b"")
    (directory.path(NAME).parent / "zz.safetensors").write_bytes(b"")
    assert list(directory.published()) == [NAME] and not staged.exists()
    assert size_of(directory.path(NAME).parent) == 2


def test_links_pipes_and_directories_are_no_files(directory: DataDirectory) -> None:
    target = directory.staging / "file"
    target.write_bytes(b"")
    os.symlink(target, directory.staging / "link")
    os.mkfifo(directory.staging / "pipe")
    os.close(open_regular(target))
    for name in ("link", "pipe", ".", "absent"):
        with pytest.raises(OSError):
            open_regular(directory.staging / name)


@pytest.mark.slow
@pytest.mark.parametrize("left", ["closed", "without a lock", "killed"])
async def test_a_directory_on_a_read_only_disk_is_checked(data: Path, left: str) -> None:
    if left == "killed":
        async with running(data) as store:
            await store.cache.CommitTurn(kv.turn([1, 2, 3]))
            shutil.copytree(data, killed := data.with_name("killed"), ignore=shutil.ignore_patterns("*.sock"))
        data = killed
        assert (data / "store.db-wal").stat().st_size
    else:
        await fill(data)
        (data / "store.sock.lock").unlink(missing_ok=True)
    if left == "without a lock":
        (data / "lock").unlink()
    (data / "store.db").chmod(0o644)  # to be mended
    before = everything(data)
    mount = f"mount --bind {data} {data} && mount -o remount,ro,bind {data}"
    commands = "; ".join(f"{sys.executable} -m cache_service {command} {data}" for command in ("check", "du"))
    line = f"{mount} || exit 77; {commands}; exec {sys.executable} -m cache_service check --repair {data}"
    command = ["unshare", "-rm", "sh", "-c", line]
    told = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    if told.returncode == 77 or "unshare" in told.stderr:
        pytest.skip("nothing can be mounted here")
    assert told.returncode == 2 and "check it without --repair" in told.stderr, told.stdout + told.stderr
    assert "found: mode: store.db" in told.stdout and "namespace/agent/model" in told.stdout
    assert everything(data) == before
