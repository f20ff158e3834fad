"""A module as a child of this command, with its output in a log."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psutil

from agentmem.words import printable
from gateway.cli.up.child import bound

_TAIL_LINES: Final = 5
_LEFT_SECONDS: Final = 20.0
"""For services whose supervisor was killed; they end by themselves."""

_KILLED_SECONDS: Final = 10.0
"""For what the system still holds in a call."""


class Failed(Exception):
    """Says why a part has no result."""


class Child:
    """Ends also with this process, however that ends; at the latest `patience` seconds after `end`.

    Its temporary files, among them what MLX compiles, are beside its log.
    """

    def __init__(self, words: Sequence[str], patience: float, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._ending, self._lock = ExitStack(), threading.Lock()
        (temporary := log.with_suffix(".tmp")).mkdir(exist_ok=True)
        self._process = self._ending.enter_context(
            bound(words, patience, log, {**environment, "TMPDIR": str(temporary)})
        )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Return its exit status once it has ended. Any thread."""
        return self._process.wait()

    def tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(map(printable, lines[-_TAIL_LINES:]))

    def end(self) -> None:
        """Return when no process is left. Any thread, and more than once."""
        with self._lock:
            below: list[psutil.Process] = []
            with suppress(psutil.Error):
                below = psutil.Process(self._process.pid).children(recursive=True)
            self._ending.close()
            left = psutil.wait_procs(below, _LEFT_SECONDS)[1]
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, _KILLED_SECONDS)
