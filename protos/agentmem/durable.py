"""Files that outlive a loss of power."""

import fcntl
import os
import sys
from pathlib import Path


def sync(descriptor: int) -> None:
    """On macOS fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(descriptor)  # network shares
    else:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, text: str) -> None:
    """Replace a file, its owner's alone, by a whole new one. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)
            file.flush()
            sync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)
