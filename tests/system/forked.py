"""Services as forks of a server that has imported their libraries (`tests.system.preloaded`).

A process each, with its own pid, to be killed like any other; only that an interpreter, its libraries and our own
modules, which cost seconds of CPU, are there already. Python's own fork server: it has no other threads than numpy's
BLAS, which can be forked, and ends with the tests.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.system.preloaded"])


class Forked:
    """`python -m MODULE ARGUMENTS…` with its output at the end of `log`; what is used here of subprocess.Popen."""

    def __init__(self, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> None:
        self._process: ForkServerProcess = _CONTEXT.Process(target=_run, args=(command, log, environment), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def poll(self) -> int | None:
        """The exit status, or minus the signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The same at its end. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("a forked service", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the fork server has not said so yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(command: tuple[str, ...], log: Path, environment: dict[str, str]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    warnings.filterwarnings("error", category=DeprecationWarning, module=r"agentmem\Z")
    module, *sys.argv[1:] = command
    runpy.run_module(module, run_name="__main__", alter_sys=True)
