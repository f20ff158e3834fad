"""A data directory's lock: one store has it, or one command."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

FILE = "lock"


class DirectoryLock:
    def __init__(self, root: Path, *, creates: bool = True) -> None:
        """Raises BlockingIOError where another holds it."""
        self._held: int | None = None
        try:
            self._held = _opened(root / FILE, creates)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            if not root.is_dir():
                raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _opened(path: Path, creates: bool) -> int:
    """A read-only disk's is opened for reading, which is enough."""
    if creates:
        with suppress(PermissionError):
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
