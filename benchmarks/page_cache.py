"""The system's page cache: dropping files, and the share of them that is left."""

import ctypes
import ctypes.util
import mmap
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def drop(paths: Iterable[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            if sys.platform == "linux":
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident(paths: Sequence[Path]) -> float:
    if sys.platform != "linux":
        return 1.0
    pages = [_pages(path) for path in paths]
    return sum(there for there, _ in pages) / max(1, sum(all_of_it for _, all_of_it in pages))


def _pages(path: Path) -> tuple[int, int]:
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    size = path.stat().st_size
    if not size:
        return 0, 0
    count = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        # ACCESS_COPY: mincore wants an address, and ctypes gives that of writable memory only.
        first = ctypes.c_char.from_buffer(mapped)
        try:
            found = (ctypes.c_ubyte * count)()
            if libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found):
                raise OSError(ctypes.get_errno(), "mincore", str(path))
        finally:
            del first
    return sum(page & 1 for page in found), count
