import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agentmem.process.checkup import State, findings, parse
from cache_service import doctor
from cache_service.doctor import checks, disk_space, disk_speed, file_system, judge_space, measure
from cache_service.settings import StoreSettings
from cache_service.tiers.limits import GIB, DiskLimits

from .offline.directory import fill


@pytest.mark.parametrize(
    ("fstype", "state"),
    [
        *((each, State.OK) for each in ("ext4", "xfs", "zfs", "APFS")),
        *((each, State.WARNING) for each in ("nfs4", "cifs", "fuse.sshfs", "9p", "tmpfs", "overlay")),
        *((each, State.PROBLEM) for each in ("vfat", "exfat", "ntfs3")),
    ],
)
def test_kinds_of_file_systems(fstype: str, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(fstype=kind, mountpoint=at) for kind, at in (("vfat", "/"), ("no", "/no"), (fstype, "/"))]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    (found,) = file_system(tmp_path)
    assert found.state is state and f"{fstype} at /" in found.found
    assert (state is State.OK) != bool(found.advice)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    (found,) = file_system(tmp_path)
    assert found.state is State.PROBLEM and "read-only" in found.found


@pytest.mark.parametrize(
    ("free", "limits", "state"),
    [
        (100 * GIB, DiskLimits(), State.OK),
        (GIB - 1, DiskLimits(), State.PROBLEM),
        (GIB + 1, DiskLimits(), State.WARNING),
        (100 * GIB, DiskLimits(99 * GIB), State.OK),
        (100 * GIB, DiskLimits(99 * GIB + 1), State.WARNING),
        (0, DiskLimits(free_bytes_floor=0), State.OK),
    ],
)
def test_room_on_the_disk(free: int, limits: DiskLimits, state: State) -> None:
    found = judge_space(free, 0, limits)
    assert found.state is state
    assert state is State.OK or "AGENTMEM_STORE_" in found.advice


async def test_files_of_kv_are_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await fill(data)
    kv = sum(path.stat().st_size for folder in ("blocks", "windows") for path in (data / folder).rglob("*.safetensors"))
    (found,) = await asyncio.to_thread(lambda: list(disk_space(data, data, DiskLimits(free_bytes_floor=0))))
    assert found.facts["used_bytes"] == kv > 0


def test_measurement_leaves_nothing_and_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[list[str]] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda *arguments: (names.append(os.listdir(tmp_path)), write(*arguments))[1])
    assert min(measure(tmp_path, 2)) > 0
    assert len(names) > 2 and not any(names), "not even while it measures"


@pytest.mark.parametrize(
    ("write", "commit", "state"), [(500e6, 0.001, State.OK), (1e6, 0.001, State.WARNING), (500e6, 1.0, State.WARNING)]
)
def test_slow_disk(write: float, commit: float, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "measure", lambda *_: (write, commit))
    (found,) = disk_speed(tmp_path, 0)
    assert found.state is state and ("SSD" in found.advice) == (state is State.WARNING)


def test_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    made = checks(StoreSettings(data=tmp_path / "a" / "b"))
    assert {found.state for check in made.values() for found in findings(check)} <= {State.OK, State.WARNING}
    assert os.listdir(tmp_path) == []
    (found,) = findings(checks(StoreSettings(data=Path("/proc/self/no")))["disk speed"])
    assert found.state in (State.PROBLEM, State.UNKNOWN) and found.advice, "nothing can be written there"


def test_full_tmpfs(tmp_path: Path) -> None:
    fills = f"mount -t tmpfs -o size=1m,mode=700 tmpfs {tmp_path} && head -c 2M /dev/zero > {tmp_path}/lock 2>&-;"
    wrapper = ("unshare", "-rm", "sh", "-c")
    if subprocess.run([*wrapper, f"mount -t tmpfs tmpfs {tmp_path}"], capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    runs = [sys.executable, "-m", "agentmem.process.checkup", "store", "cache_service.doctor", "--data", str(tmp_path)]
    command = [*wrapper, f'{fills} exec "$@"', "sh", *runs]
    _, found = parse(subprocess.run(command, capture_output=True, check=True).stdout)
    assert [(each.check, each.state) for each in found] == [
        ("file system", State.WARNING), ("disk space", State.PROBLEM), ("disk speed", State.UNKNOWN)
    ]  # fmt: skip
