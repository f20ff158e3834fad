"""All that outlives a loss of power is synced by one module, which on macOS asks the drive, too."""

import asyncio
import fcntl
import os
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentmem import durable
from agentmem.client import transfers
from cache_service.files.directory import DataDirectory
from cache_service.ledger.database import Database
from cache_service.offline.database import writing
from gateway.cluster.cli.certificates import authority
from gateway.edge import key_file
from inference_service.models.pulled import PulledModels

ROOT = Path(__file__).parents[2]
FULL_SYNC = 51
PACKAGES = ("cache_service", "gateway", "inference_service", "protos/agentmem")


class Mac:
    """Files that were synced by the call that reaches the drive."""

    def __init__(self, *, is_share: bool = False) -> None:
        self.synced: list[Path] = []
        self._is_share = is_share

    def fcntl(self, descriptor: int, command: int) -> int:
        assert command == FULL_SYNC
        if self._is_share:
            raise OSError("not on this file system")
        self.synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        return 0


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Mac:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("asks Linux for the paths of open files")
    mac = Mac()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", mac.fcntl)
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("which stops at the drive's cache"))
    return mac


def keys(folder: Path) -> None:
    with key_file.changing(folder / "keys.json"):
        pass


def pulled(folder: Path) -> None:
    PulledModels(folder / "pulled.json").keep("org/model")


def exported(folder: Path) -> None:
    async def export() -> None:
        async with transfers.written(folder / "ada.agent") as file:
            file.write(b"ledger")

    asyncio.run(export())


def certificates(folder: Path) -> None:
    authority(folder)


@pytest.mark.parametrize("write", [keys, pulled, exported, certificates])
def test_the_drive_writes_file_and_directory(write: Callable[[Path], None], mac: Mac, tmp_path: Path) -> None:
    write(tmp_path)
    *files, directory = mac.synced
    assert files and directory == tmp_path
    assert all(path.parent == tmp_path for path in files if path != tmp_path)


def test_a_share_without_it_is_synced_as_elsewhere(monkeypatch: pytest.MonkeyPatch, mac: Mac, tmp_path: Path) -> None:
    synced: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", Mac(is_share=True).fcntl)
    monkeypatch.setattr(os, "fsync", synced.append)
    durable.write(tmp_path / "file", "text")
    assert len(synced) == 2 and (tmp_path / "file").read_text() == "text"


def test_a_file_that_cannot_be_synced_stays_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    durable.write(tmp_path / "file", "old")

    def full(_: int) -> None:
        raise OSError("full")

    monkeypatch.setattr(durable, "sync", full)
    with pytest.raises(OSError, match="full"):
        durable.write(tmp_path / "file", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_ledgers_ask_the_drive(tmp_path: Path) -> None:
    """SQLite does, where it is told."""
    directory = DataDirectory(tmp_path)
    database = Database(directory.database)
    database.open()
    with closing(database):
        asked = [asyncio.run(database.commit(lambda each: each.execute("PRAGMA fullfsync").fetchone()))]
    with writing(directory.database) as connection:
        asked.append(connection.execute("PRAGMA fullfsync").fetchone())
    assert asked == [(1,), (1,)]


def test_nothing_else_syncs() -> None:
    """A call besides it would stop at the cache of a Mac's drive."""
    calls = re.compile(r"\bf(data)?sync\(")
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if calls.search(path.read_text())]
    assert [path.name for path in found] == ["durable.py"]
