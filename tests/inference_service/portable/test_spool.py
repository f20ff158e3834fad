import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentmem.errors import ResourceExhausted
from inference_service.portable.spool import Spool, disk_errors


def test_files_have_no_name_and_a_private_directory(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a" / "b")
    file = spool.file(10)
    file.write(b"secret", 3)
    assert list((tmp_path / "a" / "b").iterdir()) == []
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert file.read(100, 0) == b"\0\0\0secret"
    assert file.read(2, 3) == b"se"
    assert file.read(2, 9) == b""
    file.write(b"", 0)
    file.close()


def test_a_thread_that_is_left_behind_touches_no_other_file(tmp_path: Path) -> None:
    file = Spool(tmp_path).file(10)
    file.close()
    file.close()
    with (tmp_path / "other").open("wb"):
        with pytest.raises(ValueError, match="closed"):
            file.write(b"x", 0)
        with pytest.raises(ValueError, match="closed"):
            file.read(1, 0)
    assert (tmp_path / "other").read_bytes() == b""


async def test_places_are_few_and_come_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit=2)

    async def fail() -> None:
        async with spool.slot():
            with pytest.raises(ResourceExhausted, match="2 agents"):
                await enter(spool)
            raise ZeroDivisionError

    async with spool.slot():
        with pytest.raises(ZeroDivisionError):
            await fail()
        await enter(spool)


async def enter(spool: Spool) -> None:
    async with spool.slot():
        pass


def test_a_disk_without_room_is_refused_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9 << 30))
    Spool(tmp_path).file(8 << 30).close()
    with pytest.raises(ResourceExhausted, match=f"{(8 << 30) + 8} bytes, so {(9 << 30) + 9} must be free"):
        Spool(tmp_path).file((8 << 30) + 8)


def test_a_small_file_needs_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 << 20))
    Spool(tmp_path).file(1 << 20).close()


def test_a_full_disk_is_no_bug() -> None:
    with pytest.raises(ResourceExhausted, match="full"), disk_errors():
        raise OSError(errno.ENOSPC, "no space")
    with pytest.raises(OSError, match="other"), disk_errors():
        raise OSError(errno.EIO, "other")
