"""A Unix socket that is one server's: guarded by a lock on `<socket>.lock`, and watched, for anybody can remove a file.

A second grpc server silently steals a Unix socket and unlinks it when it stops. And a server whose socket is removed,
by a cleaner of temporary files or by hand, listens on what nobody can find any more, and does not notice.
"""

import fcntl
import os
import sys
from pathlib import Path
from typing import IO

from agentmem.addresses import AddressError

MAX_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107


class SocketGuard:
    """The lock of one socket, from `take` to `release`, by whoever binds it in between. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: IO[str] | None = None
        self._bound: tuple[int, int] | None = None

    def take(self) -> None:
        """Get the lock, and remove what a server that is gone has left. Nothing happens to a lock that is held still.

        Raises AddressError where the path is too long or cannot be used, or another server has it.
        """
        if len(os.fsencode(self._path)) > MAX_SOCKET_PATH_BYTES:
            problem = f"is over {MAX_SOCKET_PATH_BYTES} bytes; choose a shorter --run-dir"
            raise AddressError(f"the socket path {self._path} {problem}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = self._lock if self._lock is not None and _is_at(self._lock, self._lock_path) else self._locked()
            try:
                self._path.unlink(missing_ok=True)
            except BaseException:
                if held is not self._lock:
                    held.close()
                raise
        except BlockingIOError as error:
            raise AddressError(f"another server holds {self._path}; stop it, or choose another --run-dir") from error
        except OSError as error:
            problem = f"cannot make the socket {self._path}: {error.strerror}; choose another --run-dir"
            raise AddressError(problem) from error
        if held is not self._lock:
            self.release()
            self._lock = held

    def bound(self) -> None:
        """The socket has been made: from now on it is this one that has to be there."""
        self._path.chmod(0o600)
        self._bound = _identity(self._path)

    def is_lost(self) -> bool:
        """Whether the socket that was bound is not there any more."""
        return self._bound is not None and _identity(self._path) != self._bound

    def release(self) -> None:
        """Let the lock go; the file stays, so that nobody locks a file that another unlinks. May be called twice."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _locked(self) -> IO[str]:
        lock = open(self._lock_path, "w", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - held
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            lock.close()
            raise
        return lock

    @property
    def _lock_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}.lock")


def _is_at(file: IO[str], path: Path) -> bool:
    found = os.fstat(file.fileno())
    return _identity(path) == (found.st_dev, found.st_ino)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
