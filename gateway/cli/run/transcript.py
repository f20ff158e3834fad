"""The lines of an event, for people: the same on a terminal, in a file, and after a resumption."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from agentmem.v1 import workflow_pb2
from gateway.cli.run.state import Run
from gateway.cli.text import counted, printable
from gateway.cli.turn_line import turn_line
from gateway.enums import short_name

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta", "bright_green")
_INDENT = "  "

Line = Text | Table


def lines(event: workflow_pb2.RunWorkflowResponse, run: Run) -> Iterator[Line]:
    """What there is to read of an event that `run` has been told."""
    match event.WhichOneof("event"):
        case "started":
            yield _started(event.started.workflow)
        case "phase_started":
            yield Text()
            yield _phase(event.phase_started)
        case "agent_spoke":
            spoke = event.agent_spoke
            yield said(run, spoke.agent_id, "▸", spoke.text)
            told = turn_line(spoke.cache, spoke.usage, spoke.timings, reason=spoke.reason, replayed=spoke.replayed)
            yield Text(_INDENT + told, "dim")
        case "agents_heard":
            yield Text(_INDENT + heard(event.agents_heard), "dim")
        case "agent_listened":
            yield from _listened(event.agent_listened, run)
        case "phase_outcome":
            yield from _outcome(event.phase_outcome)


def said(run: Run, name: str, mark: str, text: str) -> Text:
    """An agent and its words; further lines of them are indented."""
    shown = printable(text, keep="\n").replace("\n", f"\n{_INDENT}")
    return Text.assemble((f"{printable(name)} {mark} ", color(run, name)), shown)


def color(run: Run, name: str) -> str:
    """The color of an agent, the same for the whole run."""
    place = list(run.members).index(name) if name in run.members else 0
    return f"bold {_COLORS[place % len(_COLORS)]}"


def heard(told: workflow_pb2.AgentsHeard) -> str:
    """Who hears whom, and by which channel: "marco → danny (private)"."""
    listeners = _names(told.listeners) or "nobody"
    line = f"{printable(told.speaker)} → {listeners}"
    if told.channel not in ("", "public"):
        line += f" ({printable(told.channel)})"
    if told.bystanders:
        line += f"; {_names(told.bystanders)} only {'learns' if len(told.bystanders) == 1 else 'learn'} of it"
    return line


def outcome_rows(outcome_json: str) -> list[tuple[str, str]]:
    """An outcome in names and values, one level deep."""
    try:
        told: Any = json.loads(outcome_json)
    except ValueError:
        told = outcome_json
    if not isinstance(told, dict):
        return [("", _value(told))]
    return [(printable(str(name)), _value(value)) for name, value in told.items()]


def state_name(workflow: workflow_pb2.Workflow) -> str:
    """ "running", "succeeded", "failed", "cancelled" or "interrupted"."""
    return short_name(workflow_pb2.WorkflowState.DESCRIPTOR, workflow.state) or "unknown"


def _started(workflow: workflow_pb2.Workflow) -> Text:
    agents = counted(len(workflow.agents), "agent")
    models = _names(sorted({agent.key.model_id for agent in workflow.agents if agent.key.model_id}))
    return Text.assemble(
        (printable(workflow.name), "bold"),
        (f" · {printable(workflow.workflow_id)} · {agents}{f' on {models}' if models else ''}", "dim"),
    )


def _phase(phase: workflow_pb2.PhaseStarted) -> Text:
    kind = f"{printable(phase.channel)}, {printable(phase.topology)}"
    return Text(f"phase {printable(phase.phase)}, round {phase.round} — {kind}: {_names(phase.agents)}", "bold")


def _listened(listened: workflow_pb2.AgentListened, run: Run) -> Iterator[Line]:
    told = turn_line(listened.cache, listened.usage, listened.timings, replayed=listened.replayed)
    if listened.note:
        yield said(run, listened.agent_id, "noted:", listened.note)
        yield Text(_INDENT + told, "dim")
    else:
        yield Text(f"{printable(listened.agent_id)} took it in · {told}", "dim")


def _outcome(outcome: workflow_pb2.PhaseOutcome) -> Iterator[Line]:
    yield Text(f"outcome of {printable(outcome.phase)} after {counted(outcome.rounds, 'round')}", "bold")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in outcome_rows(outcome.outcome_json):
        table.add_row(Text(_INDENT + name), Text(value))
    yield table


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
