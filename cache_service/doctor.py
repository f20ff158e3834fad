"""The store's checks for `agentmem doctor`: `python -m cache_service.doctor`, with the flags of `agentmem-store`.

They change neither the data directory nor its disk; a store may run on the directory meanwhile.
"""

import fcntl
import os
import re
import sqlite3
import stat
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote

import psutil

from agentmem.layout import DATABASE, refuse_foreign
from agentmem.process.checkup import (
    Checks,
    Finding,
    Findings,
    existing,
    listens,
    main,
    ok,
    problem,
    refused,
    unknown,
    usable_directory,
    warning,
)
from agentmem.sizes import byte_size
from cache_service.files import directory_lock, references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import size_of, sync
from cache_service.ledger import schema
from cache_service.offline import warm_index
from cache_service.offline.database import lost_by_names, lost_by_rows, lost_recovery, reading, recovery
from cache_service.offline.findings import CannotCheck
from cache_service.settings import StoreSettings
from cache_service.tiers.limits import DiskLimits

_MOST_ENTRIES = 20_000
_FEW_NAMES = 10_000
_AHEAD_SECONDS = 60.0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FILE_SYSTEMS = {
    r"nfs4?|cifs|smb3|smbfs|afpfs|webdav|9p|ceph|glusterfs|lustre|beegfs|gpfs|afs"
    r"|fuse\.(sshfs|s3|gcsfuse|rclone|glusterfs|ceph).*": warning(
        "locks and fsync of a network may not hold what they promise",
        "put --data on a disk of this machine; for KV elsewhere there is the store's --remote",
    ),
    r"tmpfs|ramfs|devtmpfs": warning(
        "all agents are lost at a reboot, and what they take is taken from memory", "put --data on a disk"
    ),
    r"vfat|msdos|exfat|fat|ntfs3?|fuseblk": problem(
        "it keeps no modes, so that others can read agents' memories",
        "put --data on a file system that has modes, such as ext4, XFS or APFS",
    ),
    r"overlay|aufs|fuse\.fuse-overlayfs": warning("a container's own layer goes with it", "mount a volume at --data"),
}
"""What kinds of file systems mean, by patterns of their names in lower case."""

_CHUNK = 8 << 20
"""About a block file of an 8B Llama, which is written and synced at once."""

_CHUNKS, _COMMITS, _PAGE = 8, 16, 4096
_MOST_SECONDS = 2.0
_SLOW_COMMIT_SECONDS, _SLOW_WRITE, _SLOW_READ = 0.05, 50e6, 200e6


def checks(settings: StoreSettings) -> Checks:
    """Return the checks of a directory that a store can use."""
    root = settings.data_directory
    held = listens(settings.address) or directory_lock.is_held(root)
    return {
        "permissions": partial(permissions, root),
        "file system": partial(file_system, root),
        "disk space": partial(disk_space, root, settings.limits, held),
        "disk speed": partial(disk_speed, root, settings.free_bytes_floor),
        "database": partial(database, root, held),
        "clock": partial(clock, root),
    }


def data_directory(root: Path) -> Findings:
    """Check whether a store can use the directory: it is this user's, or can be made. Raise ForeignDirectory."""
    if unusable := usable_directory(root, "--data"):
        return [unusable]
    if root.stat().st_mode & stat.S_ISVTX:
        return [problem(f"{root} is a shared directory", "choose a directory of its own as --data")]
    refuse_foreign(root)
    return [ok(str(root))]


def permissions(root: Path) -> Findings:
    """Check who else can read the directory. Looks at the first entries only, where there are very many."""
    if not root.is_dir():
        yield ok("nothing is there yet; directories will have mode 0700, and files 0600")
        return
    entries: list[tuple[Path, os.stat_result]] = []
    paths = (Path(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files))
    for path in islice(paths, _MOST_ENTRIES):
        with suppress(FileNotFoundError, PermissionError):  # a running store moves files
            entries.append((path, path.lstat()))
    mode = stat.S_IMODE(root.stat().st_mode)
    opened = [path for path, found in entries if not stat.S_ISLNK(found.st_mode) and found.st_mode & _OTHERS]
    foreign = [path for path, found in entries if found.st_uid != os.geteuid()]
    place = quote(str(root))
    if foreign:
        some = f"{len(foreign)} of {len(entries)} entries are another user's, as {foreign[0]}"
        yield problem(some, f"chown -R {os.geteuid()} {place}; Agentmem must not run as two users")
    if mode & _OTHERS:
        yield problem(f"{root} has mode {mode:04o}: others may look into agents' memories", f"chmod -R go-rwx {place}")
    elif opened:
        many = f"{len(opened)} of {len(entries)} entries are open to others, as {opened[0]}; the directory is closed"
        yield warning(many, f"chmod -R go-rwx {place}")
    elif not foreign:
        yield ok(f"{root} is this user's alone, with all {len(entries)} entries in it")


def file_system(root: Path) -> Findings:
    """Check the file system's kind by the table of mounts: other file systems are not asked, since one may hang.

    Whether it can be written to is asked of the place itself: on macOS homes seem to be on "/", which is read-only.
    """
    place = existing(root).resolve()
    mounts = [each for each in psutil.disk_partitions(all=True) if place.is_relative_to(each.mountpoint)]
    if not mounts:
        return [ok("of a kind that is not known here")]
    mount = max(reversed(mounts), key=lambda each: len(each.mountpoint))  # of equals the last one is on top
    where = f"{mount.fstype} at {mount.mountpoint}"
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return [problem(f"{where}, which is mounted read-only", "mount it for writing, or choose another --data")]
    meanings = (meaning for kind, meaning in _FILE_SYSTEMS.items() if re.fullmatch(kind, mount.fstype.lower()))
    return [next((replace(each, found=f"{where}: {each.found}") for each in meanings), ok(where))]


def disk_space(root: Path, limits: DiskLimits, held: bool) -> Findings:
    """Check free bytes and names against the store's limits. `held`: a store is using the directory."""
    found, directory = os.statvfs(existing(root)), DataDirectory(root)
    used = sum(size_of(folder) for folder in (directory.staging, directory.quarantine) if folder.is_dir())
    for path in (directory.warm_database, directory.database):  # the latter had them before there was warm.db
        with suppress(CannotCheck, sqlite3.Error), reading(path, beside=held) as connection:
            used += sum(references.sizes(connection).values())  # as the store counts; "database" says what fails
    yield judge_space(found.f_bavail * found.f_frsize, used, limits)
    if found.f_files and found.f_favail < _FEW_NAMES:
        few = f"{found.f_favail} more files can be made, whatever their size"
        yield warning(few, "delete small files on this disk, or put --data on another")


def judge_space(free: int, used: int, limits: DiskLimits) -> Finding:
    """Return what `free` bytes mean where files of KV take `used`."""
    fixed = limits.fixed(used, free)
    floor, most = fixed.free_bytes_floor, fixed.warm_bytes
    facts = {"free_bytes": free, "used_bytes": used, "limit_bytes": fixed.high_bytes, "floor_bytes": floor}
    setting, stays = "of the TOML file, or AGENTMEM_STORE_", f"{byte_size(floor)} have to stay free"
    if free < floor:
        lower = f"lower the floor (free_bytes_floor in [store] {setting}FREE_BYTES_FLOOR)"
        below = f"{byte_size(free)} free, and {stays}: no KV is kept, and agents lose theirs"
        return problem(below, f"make room, put --data on another disk, or {lower}", facts)
    found = f"{byte_size(free)} free; KV takes {byte_size(used)} of {byte_size(most)}"
    if most > used + free - floor:
        lower = f"lower the limit (warm_bytes in [store] {setting}WARM_BYTES)"
        return warning(f"{found}, which it cannot reach: {stays}", f"make room, or {lower}", facts)
    return ok(f"{found}; the floor is {byte_size(floor)}", facts=facts)


def disk_speed(root: Path, floor: int) -> Findings:
    """Measure the disk of `root`, of which `floor` bytes stay free, with at most 64 MiB and some seconds."""
    place = existing(root)
    free = psutil.disk_usage(str(place)).free
    spare = min(_CHUNKS * _CHUNK, free // 16, free - floor)  # below the floor a running store would drop KV for it
    if spare < _CHUNK:
        little = f"too little room to measure it: {byte_size(free)} free, of which {byte_size(floor)} stay free"
        return [unknown(little, "make room on this disk, or put --data on another")]
    write, read, commit = measure(place, spare // _CHUNK)
    facts = {"write_bytes_per_second": write, "read_bytes_per_second": read, "commit_seconds": commit}
    speeds = f"writes {byte_size(round(write))}/s, reads {byte_size(round(read))}/s"
    effects = {
        "each turn waits for commits": commit > _SLOW_COMMIT_SECONDS,
        "restoring agents takes long": read < _SLOW_READ,
        "KV reaches the disk late": write < _SLOW_WRITE,
    }
    about = f"{speeds}; a commit takes {commit * 1000:.1f} ms"
    if slow := [effect for effect, so in effects.items() if so]:
        return [warning(f"{about}: {', '.join(slow)}", "put --data on an SSD of this machine", facts)]
    return [ok(about, facts=facts)]


def measure(directory: Path, chunks: int) -> tuple[float, float, float]:
    """Return bytes/s written and synced, bytes/s read, and the median seconds of a small synced write. Raise OSError.

    The file has no name, so nothing can be left behind. Before it is read, the page cache is asked to drop it.
    """
    chunk = os.urandom(_CHUNK)  # random, since some file systems compress
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        descriptor = file.fileno()

        def write(at: int, size: int = _CHUNK) -> int:
            written = os.pwrite(descriptor, chunk[:size], at)
            sync(descriptor)
            return written

        if hasattr(fcntl, "F_NOCACHE"):
            fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
        written, writing = _timed(write, chunks * _CHUNK)
        commits = [_timed(lambda at: write(written + at, _PAGE), _PAGE)[1] for _ in range(_COMMITS)]
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        read, reading = _timed(lambda at: len(os.pread(descriptor, _CHUNK, at)), written)
    return written / writing, read / reading, statistics.median(commits)


def _timed(transfer: Callable[[int], int], most: int) -> tuple[int, float]:
    """Return the bytes that were transferred, of `most`, and the seconds that it took, at most about _MOST_SECONDS."""
    began, done = time.monotonic(), 0
    while done < most and time.monotonic() < began + _MOST_SECONDS:
        done += transfer(done)
    return done, time.monotonic() - began


def database(root: Path, held: bool) -> Findings:
    """Check that store.db is ours, of a version that this store reads, and opens, and that warm.db is there.

    `agentmem store check` reads all of both.
    """
    path = root / DATABASE
    if lost := lost_by_names(DataDirectory(root)):
        return [problem(lost, lost_recovery(path))]
    if not path.exists():
        return [ok("none yet; it is made at the first start")]
    size, page = path.stat().st_size, schema.first_page(path)
    if page is None and size:
        return [problem(f"the header of {path} is damaged: it is no SQLite database any more", recovery(path))]
    try:
        schema.refuse_newer(path)
        with reading(path, beside=held) as connection:
            if lost := lost_by_rows(DataDirectory(root), connection):
                return [problem(lost, lost_recovery(path))]
            (agents,) = connection.execute("SELECT count(*) FROM agents").fetchone()
        counted = f"{agents:,} agent{'' if agents == 1 else 's'}"
    except (schema.SchemaTooNew, schema.ForeignDatabase) as error:
        return [refused(error)]
    except (CannotCheck, sqlite3.OperationalError) as error:
        counted = f"not read now: {error}"
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return [problem(f"{path} is damaged ({error})", recovery(path))]
    version, newest = page.user_version if page else 0, len(schema.MIGRATIONS)
    made_by = f"schema {version}" + ("" if version == newest else f" of {newest}, which the next start brings along")
    found = [ok(f"{byte_size(size)}, {made_by}, {counted}", f"`agentmem store check {root}` reads all of it")]
    directory = DataDirectory(root)
    if version == newest and (unusable := warm_index.unusable(directory)):
        lost = f"{directory.warm_database} {unusable}: the next start makes it anew, which reads all ledgers and files"
        found.append(warning(lost, f"to do that before: agentmem store check --repair {quote(str(root))}"))
    return found


def clock(root: Path) -> Findings:
    """Check that the database was not written in the future."""
    path = root / DATABASE
    ahead = path.stat().st_mtime - time.time() if path.exists() else 0.0
    if ahead <= _AHEAD_SECONDS:
        return [ok("nothing was written in the future")]
    wrong = f"{path} was written {ahead / 60:,.0f} minutes from now: times that are shown are wrong"
    return [warning(wrong, "set this machine's clock (timedatectl, or System Settings)")]


if __name__ == "__main__":
    main(
        StoreSettings, "store", lambda given: {"data directory": partial(data_directory, given.data_directory)}, checks
    )
