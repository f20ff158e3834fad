"""How far a load is, as it goes on: a bar on a terminal, lines elsewhere."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import click
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from gateway.cli.text import console, printable

_WORDS: Final = {
    "wait": "waiting for its turn, and for others to make room",
    "fetch": "fetching it from the hub",
    "read": "reading the weights",
    "self-test": "testing attention and quality",
    "pool": "taking memory for KV",
    "ready": "ready",
}
_STEP: Final = 0.1
"""The share of a stage after which another line is written."""


def words(stage: str) -> str:
    """What is done in a stage; its name, where only a newer worker knows it."""
    return _WORDS.get(stage) or printable(stage)


class LoadProgress:
    """Shows what it is told while its context lasts. This one shows nothing."""

    def told(self, stage: str, share: float) -> None:
        """The load is in this stage, of which that share is done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing more is shown."""


class Lines(LoadProgress):
    """A line for each stage, and for each tenth of it. What is done as soon as it is told of has none."""

    def __init__(self, write: Callable[[str], object] = click.echo) -> None:
        self._write = write
        self._stage, self._share = "", 0.0

    def told(self, stage: str, share: float) -> None:
        began = stage != self._stage
        if share >= 1 if began else share < self._share + _STEP:
            return
        self._stage, self._share = stage, share
        self._write(words(stage) if began and not share else f"{words(stage)}: {share:.0%}")


class Bar(LoadProgress):
    """One line on the terminal, gone when it is done."""

    def __init__(self, name: str) -> None:
        self._bar = Progress(
            TextColumn("{task.fields[name]}: {task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console(),
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("", total=None, name=printable(name))

    def told(self, stage: str, share: float) -> None:
        # A wait has no end that is known, so its bar only moves.
        total = None if stage == "wait" else 1.0
        if stage == "fetch" and share >= 1:  # It was here.
            return
        self._bar.update(self._task, description=words(stage), completed=share, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()


def lines_or_bar(name: str) -> LoadProgress:
    """What suits standard output."""
    return Bar(name) if sys.stdout.isatty() else Lines()
