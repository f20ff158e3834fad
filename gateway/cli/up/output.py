"""The output of `agentmem up`: lines, or at a terminal a status."""

import asyncio
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from agentmem.console import is_screen
from agentmem.process import logs
from agentmem.process.service import is_managed
from agentmem.words import printable
from gateway.cli.live_line import INTERVAL, LiveLine
from gateway.cli.text import say
from gateway.cli.up.log_file import keep_short, prepared
from gateway.cli.up.readiness import start_line
from gateway.cli.up.settings import UpSettings
from gateway.cli.up.supervisor import to_standard_error

_PROBE_SECONDS: Final = 2.0
_QUIET_SECONDS: Final = 1.0
_WARNED: Final = 100
"""Warnings that are not said again."""

_LEVELS: Final = {"W": "warning", "warning": "warning", **dict.fromkeys(("E", "C", "error", "critical"), "error")}
_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\d [\d:,.]+ ([WEC]) (\w+) (.+)")
_FIELDS: Final = re.compile(r" \w+=")


class Output:
    """Lines on standard output, the log on standard error."""

    def __init__(self, settings: UpSettings) -> None:
        self._settings = settings
        self._announced = False

    def say(self, line: str) -> None:
        say(line)

    def course(self, line: str) -> None:
        """Say a line about the course of a start."""
        say(line)

    def relay(self, lines: Sequence[str]) -> None:
        """Write a service's lines to the log."""
        to_standard_error(lines)

    def announce(self, lines: Iterable[str]) -> None:
        """Say the status, once."""
        if not self._announced:
            self._announced = True
            self.say("\n".join(lines))

    def explained(self, failure: Exception) -> str:
        return str(failure)

    async def follow(
        self,
        unready: Callable[[], bool],  # noqa: ARG002
        status: Callable[[], Iterable[str]],  # noqa: ARG002
    ) -> None:
        """Run until it is cancelled. `status` has no line before the gateway listens."""
        await keep_short(self._settings.data_directory)


class TerminalOutput(Output):
    """The log goes to a file, from which warnings are said, each once."""

    def __init__(self, settings: UpSettings) -> None:
        super().__init__(settings)
        self.path = prepared(settings.data_directory)
        self._file = self.path.open("a", encoding="utf-8", errors="replace")
        logs.configure("up", settings.log_level, settings.log_format, self._file)
        self._line = LiveLine(sys.stdout)
        self._warned: deque[str] = deque(maxlen=_WARNED)

    def say(self, line: str) -> None:
        self._line.say(line)

    def course(self, line: str) -> None:
        logs.write(self._file, f"{line}\n")

    def relay(self, lines: Sequence[str]) -> None:
        logs.write(self._file, "".join(f"{line}\n" for line in lines))
        for line in lines:
            if warned := warning_of(line):
                message = _FIELDS.split(warned, maxsplit=1)[0]
                if message not in self._warned:
                    self._warned.append(message)
                    self.say(printable(warned))

    def announce(self, lines: Iterable[str]) -> None:
        super().announce((*lines, f"log      {self.path}"))

    def explained(self, failure: Exception) -> str:
        return f"{failure}\nThe log is {self.path}."

    async def follow(self, unready: Callable[[], bool], status: Callable[[], Iterable[str]]) -> None:
        run = self._settings.run_directory
        shortening = asyncio.create_task(keep_short(self._settings.data_directory, self._file.fileno()))
        try:
            while True:
                if not self._announced and (lines := list(status())):
                    self.announce(lines)
                waits = unready()
                self._line.show(await start_line(run, _PROBE_SECONDS) if waits else "")
                await asyncio.sleep(INTERVAL if waits else _QUIET_SECONDS)
        finally:
            shortening.cancel()
            self._line.show("")


def output(settings: UpSettings) -> Output:
    return TerminalOutput(settings) if is_screen(sys.stdout, sys.stderr) and not is_managed() else Output(settings)


def warning_of(line: str) -> str:
    """Return a warning or error of a log as "warning, worker: …"; "" for other lines."""
    if line.startswith("{"):
        try:
            told = json.loads(line)
            level, service, message = str(told["level"]), told["service"], told["message"]
        except (ValueError, TypeError, KeyError):
            return ""
    elif found := _TEXT.match(line):
        level, service, message = found.groups()
    else:
        return ""
    return f"{_LEVELS[level]}, {service}: {message}" if level in _LEVELS else ""
