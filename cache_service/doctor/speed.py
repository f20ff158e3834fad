"""How fast the disk is, measured in a file that has no name: nothing can be left behind, however this ends.

What was just written is in the page cache, and reading it says nothing of the disk. So the cache is asked to drop the
file, and then asked whether it did (Linux: reads that may not wait for the disk); on macOS it is kept out of the way.
"""

import fcntl
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from agentmem.checkup import Finding, Findings, existing, ok, problem, unknown, warning
from agentmem.sizes import byte_size
from cache_service.files import sync

_CHUNK = 8 << 20
"""About a block file of an 8B Llama, which is written and synced at once."""

_MOST_BYTES = 8 * _CHUNK
_MOST_SECONDS = 2.0
_COMMITS, _COMMIT_BYTES = 16, 4096
_SAMPLES, _PAGE = 16, 4096

_SLOW_COMMIT_SECONDS = 0.05
_SLOW_WRITE, _SLOW_READ = 50e6, 200e6


class Speed(NamedTuple):
    """Bytes per second written and synced; bytes per second read; seconds that a small write takes with its fsync.

    `cached` says whether the reads came from the page cache; None where that cannot be known.
    """

    write: float
    read: float
    commit_seconds: float
    cached: bool | None
    bytes: int


def measured(root: Path, floor: int) -> Findings:
    """The speed of the disk of `root`, whose `floor` bytes stay free; at most 64 MiB and some seconds."""
    name, place = "disk speed", existing(root)
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    spare = min(_MOST_BYTES, free // 16, free - floor)  # below the floor a store that runs would drop KV for it
    if spare < _CHUNK:
        little = (
            f"there is too little room to measure it: {byte_size(free)} free, of which {byte_size(floor)} stay free"
        )
        return [unknown(name, little, "make room on this disk, or put --data on another")]
    try:
        return [judged(measure(place, spare // _CHUNK))]
    except OSError as error:
        return [problem(name, f"{place} cannot be written to: {error.strerror}", "mend that, or choose another --data")]


def measure(directory: Path, chunks: int) -> Speed:
    """Write and read so many chunks, fewer where that takes long. Raises OSError."""
    chunk = os.urandom(_CHUNK)  # some file systems compress
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        descriptor = file.fileno()
        _keep_out_of_the_cache(descriptor)
        began, written, took = time.monotonic(), 0, 0.0
        for _ in range(chunks):
            os.write(descriptor, chunk)
            sync(descriptor)
            written, took = os.fstat(descriptor).st_size, time.monotonic() - began
            if took > _MOST_SECONDS:
                break
        commits = [_commit(descriptor, written + n * _COMMIT_BYTES) for n in range(_COMMITS)]
        cached = _dropped(descriptor, written)
        began = time.monotonic()
        read = _read(descriptor, written, began + _MOST_SECONDS)
        return Speed(written / took, read / (time.monotonic() - began), statistics.median(commits), cached, written)


def judged(speed: Speed) -> Finding:
    """What the speeds mean for turns."""
    name = "disk speed"
    source = {
        False: "",
        True: ", but from the page cache: it could not be emptied",
        None: ", perhaps from the page cache",
    }
    found = (
        f"writes {_rate(speed.write)}, reads {_rate(speed.read)}{source[speed.cached]}; "
        f"a commit takes {speed.commit_seconds * 1000:.1f} ms"
    )
    facts: dict[str, float | str | bool] = {
        "write_bytes_per_second": round(speed.write),
        "read_bytes_per_second": round(speed.read),
        "commit_seconds": speed.commit_seconds,
        "read_from_page_cache": "unknown" if speed.cached is None else speed.cached,
        "measured_bytes": speed.bytes,
    }
    slow = []
    if speed.commit_seconds > _SLOW_COMMIT_SECONDS:
        slow.append("each turn waits for commits")
    if speed.read < _SLOW_READ:
        slow.append("restoring agents takes long")
    if speed.write < _SLOW_WRITE:
        slow.append("KV reaches the disk late")
    if slow:
        return warning(name, f"{found}: {', '.join(slow)}", "put --data on an SSD of this machine", facts=facts)
    return ok(name, found, facts=facts)


def _commit(descriptor: int, offset: int) -> float:
    began = time.monotonic()
    os.pwrite(descriptor, os.urandom(_COMMIT_BYTES), offset)
    sync(descriptor)
    return time.monotonic() - began


def _read(descriptor: int, size: int, deadline: float) -> int:
    offset = 0
    while offset < size and time.monotonic() < deadline:
        offset += len(os.pread(descriptor, _CHUNK, offset))
    return offset


def _keep_out_of_the_cache(descriptor: int) -> None:
    if hasattr(fcntl, "F_NOCACHE"):
        fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)


def _dropped(descriptor: int, size: int) -> bool | None:
    """Ask the cache to drop the file; whether it has any of it even so, None where it does not tell."""
    if hasattr(fcntl, "F_NOCACHE"):
        return None
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    page, step = bytearray(_PAGE), size // _SAMPLES
    for offset in range(0, step * _SAMPLES, step):
        try:
            os.preadv(descriptor, [page], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        except OSError:  # a file system that cannot read so
            return None
        return True
    return False


def _rate(bytes_per_second: float) -> str:
    return f"{byte_size(round(bytes_per_second))}/s"
