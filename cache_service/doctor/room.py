"""Room on the disk, against the limits of the store."""

import os
import sqlite3
from pathlib import Path

from agentmem.checkup import Finding, Findings, existing, ok, problem, warning
from agentmem.sizes import byte_size
from cache_service import references
from cache_service.doctor.database import Unreadable, reading
from cache_service.files import DataDirectory, size_of
from cache_service.limits import Limits

_FEW_NAMES = 10_000
_FLOOR = "free_bytes_floor in [store] of the TOML file, or AGENTMEM_STORE_FREE_BYTES_FLOOR"
_LIMIT = "warm_bytes in [store] of the TOML file, or AGENTMEM_STORE_WARM_BYTES"


def space(root: Path, limits: Limits, held: bool) -> Findings:
    """Bytes and names that are free. `held` says that a store is using the directory."""
    found = os.statvfs(existing(root))
    yield judged(found.f_bavail * found.f_frsize, _used(root, held), limits)
    if found.f_files and found.f_favail < _FEW_NAMES:
        few = f"{found.f_favail} more files can be made, whatever their size"
        yield warning(
            "disk space",
            few,
            "delete small files on this disk, or put --data on another",
            facts={"names": found.f_favail},
        )


def judged(free: int, used: int, limits: Limits) -> Finding:
    """What `free` bytes mean where files of KV take `used`."""
    name, fixed = "disk space", limits.fixed(used, free)
    facts = {
        "free_bytes": free,
        "used_bytes": used,
        "limit_bytes": fixed.high_bytes,
        "floor_bytes": fixed.free_bytes_floor,
    }
    floor = fixed.free_bytes_floor
    if free < floor:
        found = (
            f"{byte_size(free)} free, and {byte_size(floor)} have to stay free: no KV is kept, and agents lose theirs"
        )
        return problem(
            name, found, f"make room, put --data on another disk, or lower the floor ({_FLOOR})", facts=facts
        )
    found = f"{byte_size(free)} free; KV takes {byte_size(used)} of {byte_size(fixed.warm_bytes)}"
    if fixed.warm_bytes > used + free - floor:
        cannot = f"{found}, which it cannot reach: {byte_size(floor)} have to stay free"
        return warning(name, cannot, f"make room, or lower the limit ({_LIMIT})", facts=facts)
    return ok(name, f"{found}; the floor is {byte_size(floor)}", facts=facts)


def _used(root: Path, held: bool) -> int:
    """Bytes of files of KV, as the store counts them; those of a database that cannot be read count as none."""
    directory = DataDirectory(root)
    used = sum(size_of(folder) for folder in (directory.staging, directory.quarantine) if folder.is_dir())
    try:
        with reading(directory.database, held) as connection:
            return used + sum(references.sizes(connection).values())
    except (Unreadable, sqlite3.Error):  # `database` says so
        return used
