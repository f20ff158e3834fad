"""A store knows whether turns can be kept before one fails, and hardly writes for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cache_service.ledger.ledgers import Failure
from cache_service.ledger.writability import LEAST_FREE, PROBED_FREE
from tests.cache_service import kv
from tests.cache_service.conftest import Running


def written(store: Running) -> int:
    return (store.data / "store.db-wal").stat().st_size


async def test_a_disk_with_room_is_not_written_to(store: Running) -> None:
    before = written(store)
    for _ in range(3):
        assert await store.store.ledger.writability.problem() == ""
    assert written(store) == before


async def test_a_full_disk_is_told_without_writing(store: Running) -> None:
    before = written(store)
    store.store.ledger.writability.free = lambda: LEAST_FREE - 1
    assert "disk is full: 4095 KiB are free" in await store.store.ledger.writability.problem()
    assert written(store) == before
    store.store.ledger.writability.free = lambda: PROBED_FREE
    assert await store.store.ledger.writability.problem() == ""


async def test_a_disk_that_is_nearly_full_is_tried_now_and_then(store: Running) -> None:
    await store.cache.CommitTurn(kv.turn([1]))
    before = written(store)
    store.store.ledger.writability.free = lambda: PROBED_FREE - 1
    for _ in range(5):
        assert await store.store.ledger.writability.problem() == ""
    assert 0 < written(store) - before <= 4 * 4200, "one row, once"


@pytest.mark.parametrize(
    ("failure", "tries"), [(Failure.FULL, True), (Failure.IO_ERROR, True), (Failure.DAMAGED, False)]
)
async def test_what_has_failed_is_tried_again(store: Running, failure: Failure, tries: bool) -> None:
    before = written(store)
    store.store._database.on_failure(failure)
    assert await store.store.ledger.writability.problem() == ""
    assert (written(store) > before) == tries
    assert store.metric("agentmem_ledger_failures_total", reason=failure) == 1


SMALL = """
import asyncio, sys
from pathlib import Path
from tests.cache_service.conftest import running

async def main():
    data = Path(sys.argv[1]) / "d"
    async with running(data) as store:
        print(await store.store.ledger.writability.problem() or "fine")
        (data.parent / "hog").write_bytes(bytes(57 << 20))
        print(await store.store.ledger.writability.problem() or "fine")
        (data.parent / "hog").unlink()
        print(await store.store.ledger.writability.problem() or "fine")

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_file_system_that_fills_up(data: Path) -> None:
    mount = f"mount -t tmpfs -o size=60m tmpfs {data.parent}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    line = f'{mount} && exec {sys.executable} -c "$0" {data.parent}'
    told = subprocess.run(["unshare", "-rm", "sh", "-c", line, SMALL], capture_output=True, text=True, check=False)
    first, full, after = told.stdout.splitlines() or [told.stderr]
    assert (first, after) == ("fine", "fine") and "disk is full" in full
