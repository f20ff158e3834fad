"""A service that tells what it holds: `python -m tests.system.observed MODULE FLAGS…`, then SIGUSR1.

Each signal appends a line of JSON to OBSERVED_DIR/MODULE.jsonl: asyncio tasks, threads, open files, and Python objects
after a collection. The service itself runs unchanged in this process.
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


def counts() -> dict[str, int]:
    """What the process holds now. Call it on the event loop's thread, while the loop runs."""
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/dev/fd")),
        "objects": len(gc.get_objects()),
    }


def main() -> None:
    """Become the service."""
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
