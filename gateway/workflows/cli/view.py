"""Events of a run as lines for people. Pure."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from agentmem.console import FOLD, LINE, table
from agentmem.v1 import workflow_pb2
from agentmem.words import printable, short_name
from gateway.cli.text import counted
from gateway.cli.turns import turn_line

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta", "bright_green")
_INDENT = "  "

Event = workflow_pb2.RunWorkflowResponse
Line = Text | Table


class Lines:
    """Growing text is shown when it is whole, so speakers are not mixed up."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def of(self, event: Event) -> Iterator[Line]:
        match event.WhichOneof("event"):
            case "started":
                for agent in event.started.workflow.agents:
                    self._color(agent.name)
                yield _started(event.started.workflow)
            case "phase_started":
                phase = event.phase_started
                kind = f"{printable(phase.channel)}, {printable(phase.topology)}"
                line = f"phase {printable(phase.phase)}, round {phase.round} — {kind}: {_names(phase.agents)}"
                yield from (Text(), Text(line, "bold"))
            case "agent_spoke":
                spoke = event.agent_spoke
                yield self._said(spoke.agent_id, "▸", spoke.text)
                yield Text(_INDENT + turn_line(spoke.cache, spoke), "dim")
                yield Text(_INDENT + _heard(spoke), "dim")
            case "agent_listened":
                listened = event.agent_listened
                line = turn_line(listened.cache, listened)
                if listened.note:
                    yield from (self._said(listened.agent_id, "noted:", listened.note), Text(_INDENT + line, "dim"))
                else:
                    yield Text(f"{printable(listened.agent_id)} took it in · {line}", "dim")
            case "phase_outcome":
                yield from _outcome(event.phase_outcome)
            case "finished":
                yield from (Text(), Text(totals_line(event.finished.workflow), "bold"))

    def _said(self, name: str, mark: str, text: str) -> Text:
        shown = printable(text, keep="\n").replace("\n", f"\n{_INDENT}")
        return Text.assemble((f"{printable(name)} {mark} ", self._color(name)), shown)

    def _color(self, name: str) -> str:
        return f"bold {_COLORS[self._places.setdefault(name, len(self._places)) % len(_COLORS)]}"


def state_name(workflow: workflow_pb2.Workflow) -> str:
    return short_name(workflow_pb2.WorkflowState.DESCRIPTOR, workflow.state) or "unknown"


def totals_line(workflow: workflow_pb2.Workflow) -> str:
    """Return "succeeded: 25 turns in 3.1 s · computed 900 tokens, …"."""
    seconds = max(0.0, (workflow.update_time.ToNanoseconds() - workflow.create_time.ToNanoseconds()) / 1e9)
    parts = [f"{state_name(workflow)}: {counted(workflow.turns, 'turn')} in {seconds:.1f} s", saved(workflow.totals)]
    return " · ".join(part for part in parts if part)


def saved(totals: workflow_pb2.WorkflowTotals) -> str:
    if not (resent := totals.resent_tokens):
        return ""
    parts = [
        f"computed {totals.prefilled_tokens:,} tokens, where sending each ledger again takes {resent:,}: "
        f"{100 * (resent - totals.prefilled_tokens) / resent:.0f} % saved",
        f"{totals.recomputed_tokens:,} of them again",
    ]
    return " · ".join([*parts, f"{totals.replayed:,} replayed"] if totals.replayed else parts)


def _heard(event: workflow_pb2.AgentSpoke) -> str:
    """Return "marco → danny (private)"."""
    line = f"{printable(event.agent_id)} → {_names(event.listeners) or 'nobody'}"
    if event.channel not in ("", "public"):
        line += f" ({printable(event.channel)})"
    if event.bystanders:
        line += f"; {_names(event.bystanders)} only {'learns' if len(event.bystanders) == 1 else 'learn'} of it"
    return line


def _started(workflow: workflow_pb2.Workflow) -> Text:
    agents = counted(len(workflow.agents), "agent")
    models = _names(sorted({agent.key.model_id for agent in workflow.agents if agent.key.model_id}))
    about = f" · {printable(workflow.workflow_id)} · {agents}{f' on {models}' if models else ''}"
    return Text.assemble((printable(workflow.name), "bold"), (about, "dim"))


def _outcome(outcome: workflow_pb2.PhaseOutcome) -> Iterator[Line]:
    """Yield an outcome in names and values, one level deep."""
    yield Text(f"outcome of {printable(outcome.phase)} after {counted(outcome.rounds, 'round')}", "bold")
    try:
        value: Any = json.loads(outcome.outcome_json)
    except ValueError:
        value = outcome.outcome_json
    named = value if isinstance(value, dict) else {"": value}
    rows = ((_INDENT + str(name), _value(one)) for name, one in named.items())
    yield table({"name": LINE, "value": FOLD}, rows, show_header=False, padding=(0, 2, 0, 0))


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(printable, names))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_value(one)}" for name, one in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_value, value)) or "none"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
