"""A service that tells what it holds: `python -m tests.system.observed MODULE FLAGS…`, then SIGUSR1.

Each signal appends a line of JSON to OBSERVED_DIR/MODULE.jsonl: asyncio tasks, threads, open files, and Python objects
and bytes in use after a collection. The service itself runs unchanged in this process.
"""

import asyncio
import gc
import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path

from tests.allocated import malloc_bytes

_SMALL_OBJECT_BYTES = 85
"""Bytes of Python's memory for small objects by their number, in an idle worker."""


def bytes_in_use() -> int:
    """Bytes that are in use: Python's small objects, and what malloc has given out, where glibc says how much that is.

    Not what is kept for later, by MLX and by glibc, whose arenas stay as large as they have ever been.
    """
    mlx = sys.modules.get("mlx.core")
    kept = mlx.get_cache_memory() if mlx and mlx.default_device() == mlx.cpu else 0
    return sys.getallocatedblocks() * _SMALL_OBJECT_BYTES + (malloc_bytes() or kept) - kept


def counts() -> dict[str, int]:
    """Return what the process holds. Call it on the event loop's thread, while the loop runs."""
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/dev/fd")),
        "objects": len(gc.get_objects()),
        "in_use": bytes_in_use(),
    }


def main() -> None:
    module = sys.argv[1]
    log = Path(os.environ["OBSERVED_DIR"]) / f"{module}.jsonl"

    def tell(*_: object) -> None:
        with log.open("a") as file:
            file.write(json.dumps(counts()) + "\n")

    signal.signal(signal.SIGUSR1, tell)
    del sys.argv[0]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
