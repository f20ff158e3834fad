"""What a store does at start on a full disk: `python -m tests.cache_service.full_disk DIR`, on a tmpfs of its own.

Writes one line for each start: its exit status, and the last line that it said.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from .offline.directory import ADA, block, fill
from .process import ready, spawn


def resize(root: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(root)], check=True)


def used(root: Path) -> int:
    found = os.statvfs(root)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


async def main(root: Path) -> None:
    """A start that has a row to drop, with the disk full; then one with room."""
    data = root / "d"
    await fill(data)
    block(data, ADA, 0).unlink()
    resize(root, used(root))
    process = await spawn(data)
    _, told = await process.communicate()
    sys.stdout.write(f"{process.returncode} {told.decode().splitlines()[-1]}\n")
    resize(root, 4 << 30)
    async with ready(data) as (process, _):
        process.terminate()
        sys.stdout.write(f"{await process.wait()} served\n")


asyncio.run(main(Path(sys.argv[1])))
