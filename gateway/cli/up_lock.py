"""One `agentmem up` per data directory: a lock on `<data>/up.lock`, which also tells who holds it."""

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

LOCK_FILE = "up.lock"
_INTERVAL = 0.1


class DirectoryTaken(Exception):
    """The data directory is another `agentmem up`'s, or cannot be used; the message says which."""


def has_been_taken(directory: Path) -> bool:
    """Whether there was an `agentmem up` on it, which may still run; found out without writing."""
    return os.path.exists(directory / LOCK_FILE)  # False, too, where the directory cannot be searched


class UpLock:
    """The lock, held from `__init__` until this process and all children that got `fileno` are gone.

    A predecessor that was killed leaves services behind that still write their last blocks: they hold the lock, and
    are waited for, for at most `patience` seconds. Raises DirectoryTaken.
    """

    def __init__(self, directory: Path, patience: float, report: Callable[[str], None]) -> None:
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: IO[str] = open(  # noqa: SIM115 - held
                directory / LOCK_FILE, "a+", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)
            )
        except OSError as error:
            raise DirectoryTaken(f"--data {directory} cannot be used: {error.strerror}") from error
        try:
            self._take(time.monotonic() + patience, report)
        except BaseException:
            self._file.close()
            raise
        self.tell()

    @property
    def fileno(self) -> int:
        """The descriptor that children are given."""
        return self._file.fileno()

    def tell(self, **addresses: str) -> None:
        """Write down who holds the lock, and where it serves, for the message of who comes next."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps({"pid": os.getpid(), **addresses}))
        self._file.flush()

    def close(self) -> None:
        """Let go; the file stays, so that nobody locks a file that another unlinks."""
        self._file.close()

    def _take(self, deadline: float, report: Callable[[str], None]) -> None:
        waited = False
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._holder()
                if _alive(holder.get("pid")) or time.monotonic() > deadline:
                    raise DirectoryTaken(_taken(self._directory, holder)) from None
            except OSError as error:
                raise DirectoryTaken(f"--data {self._directory} cannot be locked: {error.strerror}") from error
            else:
                return
            if not waited:
                report("the last agentmem up was killed; waiting for its services to end…")
                waited = True
            time.sleep(_INTERVAL)

    def _holder(self) -> dict[str, Any]:
        self._file.seek(0)
        try:
            holder = json.loads(self._file.read())
        except ValueError:  # it is being written
            return {}
        return holder if isinstance(holder, dict) else {}


def _taken(directory: Path, holder: dict[str, Any]) -> str:
    about = ", ".join(f"{name} {holder[name]}" for name in ("pid", "http", "grpc") if name in holder)
    who = f"another agentmem up ({about})" if about else "another agentmem up"
    return f"{who} is running on this data directory, {directory}; stop it, or choose another --data"


def _alive(pid: object) -> bool:
    """Whether there is such a process; True where nothing is known."""
    if not isinstance(pid, int):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
