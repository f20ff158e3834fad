"""The disk: private files, errors, and deletions that may fail."""

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from agentmem.errors import Internal, ResourceExhausted, is_disk_full
from agentmem.process.logs import event

log = logging.getLogger(__name__)


def open_private(path: Path) -> IO[bytes]:
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


def open_regular(path: Path) -> int:
    """Open a regular file, never what a link points to."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def size_of(folder: Path) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise ResourceExhausted where disk or quota is full, Internal where the disk fails."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise ResourceExhausted("the cache store's disk is full", retry_after=5.0) from error
        event(log, "the disk fails", logging.ERROR, error=str(error))
        raise Internal(
            f"the cache store's disk fails ({error.strerror}); nothing that is needed is lost, but look at the disk and"
            " at the store's log"
        ) from error


class Removal:
    """Deletes files whose rows are gone; what fails is tried again."""

    def __init__(self) -> None:
        self._left: set[Path] = set()

    def remove(self, paths: Iterable[Path]) -> int:
        """Return how many files the disk has kept."""
        kept = 0
        for path in paths:
            try:
                path.unlink(missing_ok=True)
                self._left.discard(path)
            except OSError as error:
                if path not in self._left:
                    event(log, "file not deleted yet", logging.ERROR, file=path.name, error=error.strerror)
                self._left.add(path)
                kept += 1
        return kept

    @property
    def left(self) -> int:
        return len(self._left)

    def again(self) -> None:
        if self._left:
            self.remove(list(self._left))

    def needed(self, path: Path) -> None:
        self._left.discard(path)
