"""Who has a data directory: one store, or one command that wants no store on it.

It is locked twice: its file `lock`, and the directory itself. A file can be removed under its holder, and the process
that comes next makes another and locks that; a directory goes only with all that is in it. The file is there for file
systems of a network that lock no directories.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

FILE = "lock"
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class DirectoryLock:
    """Both locks, from `__init__` to `close`."""

    def __init__(self, root: Path, *, creates: bool = True) -> None:
        """Raises BlockingIOError where another holds one of them, and OSError where they cannot be opened.

        The file is made if need be, where this `creates`.
        """
        self._held: list[int] = []
        try:
            with suppress(FileNotFoundError):
                self._held.append(_opened(root / FILE, creates))
                fcntl.flock(self._held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY))
            try:
                fcntl.flock(self._held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the directory go. May be called twice."""
        while self._held:
            os.close(self._held.pop())


def _opened(path: Path, creates: bool) -> int:
    """The file; on a disk that cannot be written to, for reading, which is enough for a lock there."""
    if creates:
        with suppress(PermissionError):
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
