"""A run while it goes on: live on a terminal, lines elsewhere, JSON for machines."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentmem.console import FOLD, LINE, RIGHT, console, table, write_json
from agentmem.v1 import workflow_pb2
from agentmem.words import printable
from gateway.api.contract_json import to_json
from gateway.cli.text import counted
from gateway.cli.turns import match_name, tiers_of, turn_line
from gateway.cli.workflows.state import Member, Run, totals_line

_REDRAW: Final = 0.1
"""Seconds between two drawings where only words have come."""

_LONGEST_SAYING: Final = 600
"""Characters of an utterance that are shown while it grows: its end."""

_WIDE: Final = 100
"""Columns of a terminal from which phase and tier have room, too."""

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta", "bright_green")
_STYLES = {"speaking": "bold", "listening": "", "idle": "dim"}
_INDENT = "  "

Event = workflow_pb2.RunWorkflowResponse
Line = Text | Table


class View(AbstractContextManager["View", None]):
    """Shows each event of `run` after the run has taken it in, while its context lasts. This one shows nothing."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def show(self, event: Event) -> None:
        """Show an event."""

    def outage(self, why: str) -> None:
        """Say that the gateway is waited for."""
        click.echo(waiting(why), err=True)

    def ended(self) -> None:
        """Sum up the run, which has ended; so has the context."""

    def __exit__(self, *_: object) -> None:
        """Show nothing more but `ended`."""


class JsonLines(View):
    """A JSON object per event, those of growing text too."""

    def show(self, event: Event) -> None:
        write_json(to_json(event))


class Lines(View):
    """What is settled, as lines. Growing text is shown when it is whole, so that speakers are not mixed up."""

    def __init__(self, run: Run, to: Console | None = None) -> None:
        super().__init__(run)
        self._console = to or console()

    def show(self, event: Event) -> None:
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
        # Drawn only here, on this thread: the run's state is not shared with another.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def show(self, event: Event) -> None:
        super().show(event)
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

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def view_of(run: Run, *, as_json: bool) -> View:
    """Return the view that suits standard output."""
    if as_json:
        return JsonLines(run)
    to = console()
    return Screen(run, to) if sys.stdout.isatty() and not to.is_dumb_terminal else Lines(run, to)


def waiting(why: str) -> str:
    """Return what is said of an outage."""
    return f"… waiting: {printable(why)}; the run goes on where it was"


def lines(event: Event, run: Run) -> Iterator[Line]:
    """Yield the lines of an event that `run` has taken in."""
    match event.WhichOneof("event"):
        case "started":
            yield _started(event.started.workflow)
        case "phase_started":
            phase = event.phase_started
            kind = f"{printable(phase.channel)}, {printable(phase.topology)}"
            line = f"phase {printable(phase.phase)}, round {phase.round} — {kind}: {_names(phase.agents)}"
            yield from (Text(), Text(line, "bold"))
        case "agent_spoke":
            spoke = event.agent_spoke
            line = turn_line(spoke.cache, spoke)
            yield from (said(run, spoke.agent_id, "▸", spoke.text), Text(_INDENT + line, "dim"))
        case "agents_heard":
            yield Text(_INDENT + heard(event.agents_heard), "dim")
        case "agent_listened":
            listened = event.agent_listened
            line = turn_line(listened.cache, listened)
            if listened.note:
                yield from (said(run, listened.agent_id, "noted:", listened.note), Text(_INDENT + line, "dim"))
            else:
                yield Text(f"{printable(listened.agent_id)} took it in · {line}", "dim")
        case "phase_outcome":
            yield from _outcome(event.phase_outcome)


def said(run: Run, name: str, mark: str, text: str) -> Text:
    """Return an agent and its words; further lines of them are indented."""
    shown = printable(text, keep="\n").replace("\n", f"\n{_INDENT}")
    return Text.assemble((f"{printable(name)} {mark} ", _color(run, name)), shown)


def heard(event: workflow_pb2.AgentsHeard) -> str:
    """Return who hears whom, and by which channel: "marco → danny (private)"."""
    line = f"{printable(event.speaker)} → {_names(event.listeners) or 'nobody'}"
    if event.channel not in ("", "public"):
        line += f" ({printable(event.channel)})"
    if event.bystanders:
        line += f"; {_names(event.bystanders)} only {'learns' if len(event.bystanders) == 1 else 'learn'} of it"
    return line


def outcome_rows(outcome_json: str) -> list[tuple[str, str]]:
    """Return an outcome in names and values, one level deep."""
    try:
        value: Any = json.loads(outcome_json)
    except ValueError:
        value = outcome_json
    if not isinstance(value, dict):
        return [("", _value(value))]
    return [(printable(str(name)), _value(one)) for name, one in value.items()]


def members_table(run: Run, width: int, most: int | None = None) -> Table:
    """Return how each agent stands, for a terminal of `width` columns.

    Agents that speak come first where there is room for `most` only.
    """
    wide = width >= _WIDE
    columns: dict[str, Mapping[str, Any]] = {
        "agent": FOLD,
        "phase": {**LINE, "overflow": "ellipsis"},
        "state": {**LINE, "min_width": 9},
        "turns": RIGHT,
        "ledger": RIGHT,
        "last": LINE,
        "tier": LINE,
        "reused": RIGHT,
        "first token": RIGHT,
    }
    members = shown = list(run.members.values())
    if most is not None and len(members) > most:
        order = ("speaking", "listening", "idle")
        shown = sorted(members, key=lambda member: order.index(member.doing))[: max(1, most - 1)]
    rows = [dict(zip(columns, _row(run, member), strict=False)) for member in shown]
    if len(shown) < len(members):
        rows.append({"agent": Text(f"and {len(members) - len(shown)} more", style="dim")})
    kept = {name: column for name, column in columns.items() if wide or name not in ("phase", "tier")}
    return table(kept, ([row.get(name, "") for name in kept] for row in rows))


def _row(run: Run, member: Member) -> list[str | Text]:
    name, doing = Text(printable(member.name), _color(run, member.name)), Text(member.doing, _STYLES[member.doing])
    row: list[str | Text] = [name, member.phase, doing, str(member.turns), f"{member.ledger_tokens:,}"]
    if step := member.last:
        usage = step.event.usage
        first = step.event.timings.time_to_first_token.ToTimedelta().total_seconds()
        row += [match_name(step.event.cache).upper(), tiers_of(usage.cached)]
        row += [f"{step.reused:,} of {usage.prompt_tokens:,}", f"{first:.2f} s" if usage.completion_tokens else ""]
    return row


def _color(run: Run, name: str) -> str:
    """Return the color of an agent, the same for the whole run."""
    place = list(run.members).index(name) if name in run.members else 0
    return f"bold {_COLORS[place % len(_COLORS)]}"


def _started(workflow: workflow_pb2.Workflow) -> Text:
    agents = counted(len(workflow.agents), "agent")
    models = _names(sorted({agent.key.model_id for agent in workflow.agents if agent.key.model_id}))
    about = f" · {printable(workflow.workflow_id)} · {agents}{f' on {models}' if models else ''}"
    return Text.assemble((printable(workflow.name), "bold"), (about, "dim"))


def _outcome(outcome: workflow_pb2.PhaseOutcome) -> Iterator[Line]:
    yield Text(f"outcome of {printable(outcome.phase)} after {counted(outcome.rounds, 'round')}", "bold")
    columns = {"name": LINE, "value": FOLD}
    rows = ((_INDENT + name, value) for name, value in outcome_rows(outcome.outcome_json))
    yield table(columns, rows, show_header=False, padding=(0, 2, 0, 0))


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(printable, names))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{printable(str(name))}: {_value(one)}" for name, one in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_value, value)) or "none"
    if value is None:
        return "none"
    return printable(value) if isinstance(value, str) else json.dumps(value)
