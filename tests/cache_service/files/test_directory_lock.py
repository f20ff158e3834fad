"""One store per data directory; and disks that cannot be written."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cache_service import kv
from tests.cache_service.conftest import running
from tests.cache_service.offline.directory import everything, fill


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
