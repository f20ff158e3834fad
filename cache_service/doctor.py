"""The store's checks for `agentmem doctor`: the data directory's disk, beside a running store."""

import os
import re
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from agentmem.durable import sync
from agentmem.process.checkup import Checks, Finding, Findings, ok, problem, unknown, warning
from agentmem.sizes import byte_size
from cache_service.files.directory import FOLDERS, DataDirectory
from cache_service.files.disk import size_of
from cache_service.settings import StoreSettings
from cache_service.tiers.limits import DiskLimits

SETTINGS = StoreSettings

_NETWORKS = "nfs4?|cifs|smb3|smbfs|afpfs|webdav|9p|ceph|glusterfs|lustre|beegfs|gpfs|afs"
_FILE_SYSTEMS = {
    rf"{_NETWORKS}|fuse\.(sshfs|s3|gcsfuse|rclone|glusterfs|ceph).*": warning(
        "locks and fsync of a network may not hold what they promise",
        "put --data on a disk of this machine; for KV elsewhere there is the store's --remote",
    ),
    "tmpfs|ramfs|devtmpfs": warning("all agents are lost at a reboot, and take memory", "put --data on a disk"),
    "vfat|msdos|exfat|fat|ntfs3?|fuseblk": problem(
        "it keeps no modes, so that others can read agents' memories", "put --data on ext4, XFS or APFS"
    ),
    r"overlay|aufs|fuse\.fuse-overlayfs": warning("a container's own layer goes with it", "mount a volume at --data"),
}

_CHUNK, _PAGE = 8 << 20, 4096
"""A block file of an 8B Llama, and a small commit."""

_CHUNKS, _COMMITS, _MOST_SECONDS = 8, 16, 2.0
_SLOW_COMMIT_SECONDS, _SLOW_WRITE = 0.05, 50e6


def checks(settings: StoreSettings) -> Checks:
    root = settings.data_directory
    place = next(path for path in (root, *root.parents) if os.path.exists(path))
    return {
        "file system": partial(file_system, place),
        "disk space": partial(disk_space, root, place, settings.limits),
        "disk speed": partial(disk_speed, place, settings.free_bytes_floor),
    }


def file_system(place: Path) -> Findings:
    """Check the kind by the table of mounts: another one may hang if asked. On macOS homes seem to be on a read-only
    "/".
    """
    mounts = [each for each in psutil.disk_partitions(all=True) if place.resolve().is_relative_to(each.mountpoint)]
    if not mounts:
        return [ok("of a kind that is not known here")]
    mount = max(reversed(mounts), key=lambda each: len(each.mountpoint))  # the last of equals is on top
    where = f"{mount.fstype} at {mount.mountpoint}"
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return [problem(f"{where}, which is mounted read-only", "mount it for writing, or choose another --data")]
    meanings = (meaning for kind, meaning in _FILE_SYSTEMS.items() if re.fullmatch(kind, mount.fstype.lower()))
    return [next((replace(each, found=f"{where}: {each.found}") for each in meanings), ok(where))]


def disk_space(root: Path, place: Path, limits: DiskLimits) -> Findings:
    directory = DataDirectory(root)
    shelves = (shelf for name in FOLDERS.values() for shelf in (root / name).glob("??"))
    used = sum(size_of(each) for each in (directory.staging, *shelves) if each.is_dir())
    return [judge_space(psutil.disk_usage(str(place)).free, used, limits)]


def judge_space(free: int, used: int, limits: DiskLimits) -> Finding:
    fixed = limits.fixed(used, free)
    floor, most = fixed.free_bytes_floor, fixed.warm_bytes
    facts = {"free_bytes": free, "used_bytes": used, "limit_bytes": fixed.high_bytes, "floor_bytes": floor}
    stays, lower = f"{byte_size(floor)} have to stay free", "make room, or lower {} in [store] (AGENTMEM_STORE_{})"
    if free < floor:
        below = f"{byte_size(free)} free, and {stays}: no KV is kept, and agents lose theirs"
        return problem(below, lower.format("free_bytes_floor", "FREE_BYTES_FLOOR"), facts)
    found = f"{byte_size(free)} free; KV takes {byte_size(used)} of {byte_size(most)}"
    if most > used + free - floor:
        return warning(f"{found}, which it cannot reach: {stays}", lower.format("warm_bytes", "WARM_BYTES"), facts)
    return ok(f"{found}; the floor is {byte_size(floor)}", facts=facts)


def disk_speed(place: Path, floor: int) -> Findings:
    """Measure with a file of at most 64 MiB without a name."""
    free = psutil.disk_usage(str(place)).free
    spare = min(_CHUNKS, (free - floor) // _CHUNK)  # below the floor a running store would drop KV for it
    if spare < 1:
        little = f"too little room to measure it: {byte_size(free)} free, of which {byte_size(floor)} stay free"
        return [unknown(little, "make room on this disk, or put --data on another")]
    written, commit = measure(place, spare)
    facts = {"write_bytes_per_second": written, "commit_seconds": commit}
    about = f"writes {byte_size(round(written))}/s; a commit takes {commit * 1000:.1f} ms"
    slow = ["each turn waits for commits"] if commit > _SLOW_COMMIT_SECONDS else []
    slow += ["KV reaches the disk late"] if written < _SLOW_WRITE else []
    if slow:
        return [warning(f"{about}: {', '.join(slow)}", "put --data on an SSD of this machine", facts)]
    return [ok(about, facts=facts)]


def measure(place: Path, chunks: int) -> tuple[float, float]:
    """Return bytes/s written and synced, and the median seconds of a small synced write."""
    chunk = os.urandom(_CHUNK)  # some file systems compress
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:

        def write(size: int) -> int:
            written = os.write(file.fileno(), chunk[:size])
            sync(file.fileno())
            return written

        began, written = time.monotonic(), 0
        while written < chunks * _CHUNK and time.monotonic() < began + _MOST_SECONDS:
            written += write(_CHUNK)
        writing, commits = time.monotonic() - began, []
        for _ in range(_COMMITS):
            began = time.monotonic()
            write(_PAGE)
            commits.append(time.monotonic() - began)
    return written / writing, statistics.median(commits)
