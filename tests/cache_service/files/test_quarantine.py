"""Files that failed verification, and those that a crash, a failing disk or another program leaves."""

import errno
import logging
import os
import sqlite3
import time
from pathlib import Path

import pytest

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.files.directory import DataDirectory
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, running, wrong_field
from tests.cache_service.tiers.test_blocks import add, found, name, on_disk, publish, stage


async def test_a_damaged_file_is_deleted_and_logged(store: Running, caplog: pytest.LogCaptureFixture) -> None:
    block = await add(store, [1])
    (file,) = await found(store, block)
    request = pb.QuarantineBlockRequest(namespace="default", name=block, reason="digest")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await store.cache.QuarantineBlock(request)
    assert not await found(store, block) and on_disk(store.data) == []
    (logged,) = (record for record in caplog.records if record.getMessage().startswith("damaged file deleted"))
    said = str(logged.__dict__)
    assert all(part in said for part in (file.chain_hash.hex(), file.digest.hex(), "digest", str(file.size_bytes)))
    assert store.metric("agentmem_cache_quarantined_total", reason="digest") == 1
    await add(store, [1])
    assert await found(store, block), "a file that was computed again"


async def test_quarantine_of_a_vanished_file_forgets_its_row(store: Running) -> None:
    block = await add(store, [1])
    Path((await found(store, block))[0].path).unlink()
    for namespace, there in (("other", True), ("default", False), ("default", False)):
        request = pb.QuarantineBlockRequest(namespace=namespace, name=block, reason="io_error")
        await store.cache.QuarantineBlock(request)
        assert bool(await found(store, block)) == there
    assert on_disk(store.data) == []
    assert store.metric("agentmem_cache_quarantined_total", reason="io_error") == 0


async def test_a_file_that_was_replaced_meanwhile_is_not_deleted(store: Running) -> None:
    block = await add(store, [1])
    (old,) = await found(store, block)
    await store.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key(), allow_missing=True))
    await add(store, [1])
    (new,) = await found(store, block)
    assert new.digest != old.digest
    request = pb.QuarantineBlockRequest(namespace="default", name=block, reason="digest", digest=old.digest)
    await store.cache.QuarantineBlock(request)
    assert await found(store, block) == [new]
    request.digest = b"short"
    assert await wrong_field(store.cache.QuarantineBlock(request)) == "digest"
    request.digest = new.digest
    await store.cache.QuarantineBlock(request)
    assert not await found(store, block)


async def test_a_publication_that_fails_leaves_nothing(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    one, two = kv.header([1]), kv.header([2])
    for target, fault, expected in (
        ("cache_service.files.directory.sync_directory", full, "RESOURCE_EXHAUSTED"),
        ("cache_service.files.references.add", broken, "INTERNAL"),
    ):
        staged = await stage(store, name(one), name(two))
        files = [kv.write(staged[0], one), kv.write(staged[1], two)]
        with monkeypatch.context() as patch:
            patch.setattr(target, fault)
            await fails(publish(store, files), expected)
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
