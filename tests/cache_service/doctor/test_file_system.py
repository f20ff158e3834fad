import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agentmem.process.checkup import State
from cache_service.doctor import file_system


@pytest.mark.parametrize(
    ("fstype", "state"),
    [
        *((each, State.OK) for each in ("ext4", "xfs", "btrfs", "zfs", "apfs", "APFS", "hfs")),
        *((each, State.WARNING) for each in ("nfs4", "cifs", "fuse.sshfs", "smbfs", "9p", "tmpfs", "overlay")),
        *((each, State.PROBLEM) for each in ("vfat", "exfat", "ntfs3")),
    ],
)
def test_kinds(fstype: str, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(fstype=kind, mountpoint=at) for kind, at in (("vfat", "/"), ("no", "/no"), (fstype, "/"))]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    (found,) = file_system(tmp_path)
    assert found.state is state and f"{fstype} at /" in found.found
    assert (state is State.OK) != bool(found.advice)


def test_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    (found,) = file_system(tmp_path)
    assert found.state is State.PROBLEM and "read-only" in found.found


def test_a_mount_that_cannot_be_written_to(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o ro tmpfs {tmp_path}"
    look = "import pathlib; from cache_service.doctor import file_system; "
    look += f"print(*file_system(pathlib.Path('{tmp_path}/a')))"
    command = ["unshare", "-rm", "sh", "-c", f'{mount} || exit 77; exec {sys.executable} -c "$0"', look]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode == 77 or "unshare" in told.stderr:
        pytest.skip("a file system cannot be mounted here")
    assert "read-only" in told.stdout and "PROBLEM" in told.stdout, told.stderr


def test_the_mount_that_holds_the_path() -> None:
    (found,) = file_system(Path("/proc/self/no/such"))
    assert "proc at /proc" in found.found
