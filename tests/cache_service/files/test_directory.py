"""Paths of the data directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentmem.kv.blockfile import FileKind, FileName
from cache_service.files.directory import DataDirectory, DirectoryUnusable
from cache_service.files.disk import open_regular, size_of


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
