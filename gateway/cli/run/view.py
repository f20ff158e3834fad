"""A run while it goes on: live on a terminal, lines elsewhere, JSON for machines."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from agentmem.v1 import workflow_pb2
from gateway.cli.client import write_json
from gateway.cli.contract_json import as_dict
from gateway.cli.run.state import Run
from gateway.cli.run.table import members_table
from gateway.cli.run.totals import totals_line
from gateway.cli.run.transcript import lines, said
from gateway.cli.text import console, iso_time, printable

_REDRAW: Final = 0.1
"""Seconds between two drawings where only words have come."""
_LONGEST_SAYING: Final = 600
"""Characters of an utterance that are shown while it grows: its end."""

Event = workflow_pb2.RunWorkflowResponse


class View:
    """Shows each event of `run` after the run was told of it, while its context lasts. This one shows nothing."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def told(self, event: Event) -> None:
        """The run goes on."""

    def outage(self, why: str) -> None:
        """The gateway is waited for."""
        click.echo(waiting(why), err=True)

    def ended(self) -> None:
        """The run has ended, and its context too: what there is to say of the whole."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing more is shown but `ended`."""


class JsonLines(View):
    """A JSON object per event, those of growing text too."""

    def told(self, event: Event) -> None:
        write_json(event_dict(event))


class Lines(View):
    """What is settled, as lines. Growing text is shown when it is whole, so that speakers are not mixed up."""

    def __init__(self, run: Run, to: Console | None = None) -> None:
        super().__init__(run)
        self._console = to or console()

    def told(self, event: Event) -> None:
        for line in lines(event, self.run):
            self._console.print(line, soft_wrap=isinstance(line, Text))

    def ended(self) -> None:
        self._console.print()
        self._console.print(members_table(self.run, self._console.width))
        self._console.print(Text(totals_line(self.run), "bold"), soft_wrap=True)


class Screen(Lines):
    """Lines, and below them, until it ends, what is being said and how each agent stands."""

    def __init__(self, run: Run, to: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(run, to)
        self._clock = clock
        self._drawn = float("-inf")
        # Drawn by what is told, on this thread: the run's state is no other thread's.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def told(self, event: Event) -> None:
        super().told(event)
        if event.WhichOneof("event") != "agent_delta" or self._clock() >= self._drawn + _REDRAW:
            self._live.update(self._bottom(), refresh=True)
            self._drawn = self._clock()

    def outage(self, why: str) -> None:
        self._console.print(Text(waiting(why), "yellow"), soft_wrap=True)
        self._live.update(self._bottom(), refresh=True)

    def _bottom(self) -> Group:
        speaking = [member for member in self.run.members.values() if member.doing == "speaking"]
        rows = max(4, self._console.height - 4 - 3 * len(speaking))
        parts: list[Text] = []
        for member in speaking:
            text = member.saying
            shown = text if len(text) <= _LONGEST_SAYING else f"…{text[-_LONGEST_SAYING:]}"
            parts.append(said(self.run, member.name, "▸", shown))
        return Group(*parts, Text(), members_table(self.run, self._console.width, rows))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()


def view_of(run: Run, *, as_json: bool) -> View:
    """What suits standard output."""
    if as_json:
        return JsonLines(run)
    to = console()
    return Screen(run, to) if sys.stdout.isatty() and not to.is_dumb_terminal else Lines(run, to)


def event_dict(event: Event) -> dict[str, object]:
    """An event as --json writes it: its number, its time, its kind, and the fields of that kind."""
    kind = event.WhichOneof("event")
    fields = as_dict(getattr(event, kind)) if kind else {}
    return {"sequence": event.sequence, "time": iso_time(event.time), "event": kind, **fields}


def waiting(why: str) -> str:
    """What is said of an outage."""
    return f"… waiting: {printable(why)}; the run goes on where it was"
