"""One `agentmem up` per data directory, by a lock on `<data>/up.lock`."""

import fcntl
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from agentmem.console import Mistake
from gateway.cli.up.settings import up_settings

LOCK_FILE = "up.lock"
_INTERVAL = 0.1
_CLOCKS_DIFFER = 2.0
"""Seconds; ages of processes are known by ticks since boot."""


def holder_of(directory: Path) -> dict[str, Any]:
    """Return the lock's content: pid, and addresses once all services are ready; {} while it is being written."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads((directory / LOCK_FILE).read_text(encoding="utf-8")))
    return {}


def may_hold(directory: Path, pid: int) -> bool:
    """Return whether a process may have written the lock, rather than got the same number later."""
    try:
        return psutil.Process(pid).create_time() <= (directory / LOCK_FILE).stat().st_mtime + _CLOCKS_DIFFER
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False


def running() -> tuple[Path, dict[str, Any]]:
    """Return the data directory of the settings, and its lock's content, {} where nobody holds it. Raises Mistake."""
    data = up_settings({}).data_directory
    holder = holder_of(data)
    return data, holder if may_hold(data, int(holder.get("pid", 0))) else {}


class UpLock:
    """The lock, held until this process and all children with `fileno` are gone.

    Services of a killed predecessor hold it while they write their last blocks: they get `patience` seconds. Raises
    Mistake.
    """

    def __init__(self, directory: Path, patience: float, report: Callable[[str], None]) -> None:
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: IO[str] = open(  # noqa: SIM115 - held
                directory / LOCK_FILE, "a+", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)
            )
        except OSError as error:
            raise Mistake(f"--data {directory} cannot be used: {error.strerror}") from error
        try:
            self._take(time.monotonic() + patience, report)
        except BaseException:
            self._file.close()
            raise
        self.write()

    @property
    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, **addresses: str) -> None:
        """Name the holder and its addresses."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps({"pid": os.getpid(), **addresses}))
        self._file.flush()

    def close(self) -> None:
        """Keep the file, so that no process locks an unlinked one."""
        self._file.close()

    def _take(self, deadline: float, report: Callable[[str], None]) -> None:
        waited = False
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = holder_of(self._directory)
                if may_hold(self._directory, holder.get("pid", os.getpid())) or time.monotonic() > deadline:
                    raise Mistake(self._taken(holder)) from None
            except OSError as error:
                raise Mistake(f"--data {self._directory} cannot be locked: {error.strerror}") from error
            else:
                return
            if not waited:
                report("the last agentmem up was killed; waiting for its services to end…")
                waited = True
            time.sleep(_INTERVAL)

    def _taken(self, holder: dict[str, Any]) -> str:
        about = ", ".join(f"{name} {holder[name]}" for name in ("pid", "http", "grpc") if name in holder)
        who = f"another agentmem up ({about})" if about else "another agentmem up"
        return f"{who} is running on this data directory, {self._directory}; stop it, or choose another --data"
