"""Where tests put the files of services: in memory where that can be had, as a disk takes milliseconds for an fsync.

What is proved of durability is proved by the calls that a service makes and their order (`tests.faults`), and by
killing it: a process that ends leaves the same files in memory as on a disk. AGENTMEM_TESTS_ON_DISK=1 takes /tmp.
"""

from __future__ import annotations

import os
import shutil
from typing import Final

_MEMORY: Final = "/dev/shm"
_LEAST_BYTES: Final = 8 << 30


def _in_memory() -> bool:
    if os.environ.get("AGENTMEM_TESTS_ON_DISK") or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return False
    no_programs = os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    return not no_programs and shutil.disk_usage(_MEMORY).free >= _LEAST_BYTES


FOLDER: Final = _MEMORY if _in_memory() else "/tmp"
"""Short, for sockets below it."""
