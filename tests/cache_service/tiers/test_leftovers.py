"""What a crash, a failing disk or another program leaves of files: swept, set aside, or deleted."""

import errno
import os
import sqlite3
import time
from pathlib import Path

import grpc
import pytest

from agentmem.kv.blockfile import FileKind, FileName
from cache_service.files.directory import DataDirectory
from tests.cache_service import kv
from tests.cache_service.conftest import Running, code, running
from tests.cache_service.tiers.test_blocks import add, found, name, on_disk, publish, stage


async def test_a_publication_that_fails_leaves_nothing(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    one, two = kv.header([1]), kv.header([2])
    for target, fault, expected in (
        ("cache_service.files.directory.sync_directory", full, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("cache_service.files.references.add", broken, grpc.StatusCode.INTERNAL),
    ):
        staged = await stage(store, name(one), name(two))
        files = [kv.write(staged[0], one), kv.write(staged[1], two)]
        with monkeypatch.context() as patch:
            patch.setattr(target, fault)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await publish(store, files)
        assert code(error) is expected
        assert on_disk(store.data) == [] and not await found(store, name(one), name(two))
    assert await found(store, await add(store, [1]))


async def test_a_start_sweeps_what_a_crash_has_left(data: Path) -> None:
    async with running(data) as store:
        kept, vanished = await add(store, [1]), await add(store, [2])
        (file,) = await found(store, kept)
        Path((await found(store, vanished))[0].path).unlink()
        (staged,) = await stage(store, name(kv.header([3])))
        kv.copy(file.path, Path(staged.path))
    directory = DataDirectory(data)
    orphan = directory.path(FileName(FileKind.BLOCK, bytes(32)))
    kv.copy(file.path, orphan)
    async with running(data) as store:
        assert [each.path for each in await found(store, kept, vanished)] == [file.path]
        assert len(on_disk(data)) == 1


async def test_what_a_killed_worker_has_left_goes_in_a_day(store: Running) -> None:
    """It counts for the limit of the disk, and no start may be near; what is being written stays."""
    old, new = kv.header([1]), kv.header([2])
    for_old, for_new = await stage(store, name(old), name(new))
    kv.write(for_old, old)
    written = kv.write(for_new, new)
    others = store.data / "staging" / "notes.txt"
    others.write_text("")
    for path in (for_old.path, others):
        os.utime(path, (time.time() - 86500,) * 2)
    await store.store.upkeep(store.store.clock.time())
    assert {path.name for path in (store.data / "staging").iterdir()} == {Path(for_new.path).name, "notes.txt"}
    assert await publish(store, [written]) == (1, 0)
