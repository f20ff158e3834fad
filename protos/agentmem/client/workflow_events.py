"""What happens in a run of a workflow, as values that never change."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from agentmem.client.answers import Memory, Timings, Usage, Version, timings_of, usage_of, value_of
from agentmem.client.records import time_of
from agentmem.v1 import types_pb2, workflow_pb2


@dataclass(frozen=True, slots=True)
class Member:
    """An agent of a run: what the definition calls it, and whose memory that is."""

    name: str
    agent: str
    model: str
    persists: bool


@dataclass(frozen=True, slots=True)
class Workflow:
    """One run. `state` is "running", "succeeded", "failed", "cancelled" or "interrupted"."""

    id: str
    name: str
    state: str
    phase: str
    turns: int
    error: str
    created: datetime | None
    updated: datetime | None
    members: tuple[Member, ...]
    raw: workflow_pb2.Workflow = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: workflow_pb2.Workflow) -> Workflow:
        """Return it, of the contract's message."""
        members = tuple(Member(each.name, each.key.agent_id, each.key.model_id, each.persists) for each in raw.agents)
        created, updated = time_of(raw.create_time), time_of(raw.update_time)
        return value_of(cls, raw, id=raw.workflow_id, created=created, updated=updated, members=members)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run began."""

    workflow: Workflow


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A round of a phase began."""

    phase: str
    round: int
    topology: str
    channel: str
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Speaking:
    """An agent begins to speak; or begins again, after an outage."""

    agent: str
    memory: Memory
    phase: str
    round: int


@dataclass(frozen=True, slots=True)
class Said:
    """An agent says more."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class Spoke:
    """An agent's turn is complete, and on disk."""

    agent: str
    text: str
    phase: str
    round: int
    usage: Usage
    timings: Timings
    version: Version
    memory: Memory
    replayed: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """Who hears what was said; `bystanders` only learn that there was a whisper."""

    speaker: str
    listeners: tuple[str, ...]
    channel: str
    bystanders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listened:
    """An agent has taken in what it heard; `note` is what it noted for itself."""

    agent: str
    phase: str
    round: int
    note: str
    usage: Usage
    timings: Timings
    version: Version
    memory: Memory
    replayed: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of a phase."""

    phase: str
    outcome: Any
    rounds: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ended, well or not."""

    workflow: Workflow


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The connection was lost and is value_of again: of what is being said some may be missing. Spoke has all of it."""


RunEvent: TypeAlias = (
    RunStarted | PhaseStarted | Speaking | Said | Spoke | Heard | Listened | Outcome | RunFinished | Interrupted
)


def event_of(raw: workflow_pb2.RunWorkflowResponse) -> RunEvent | None:
    """Return an event of the contract; None for one that only a newer gateway knows."""
    match raw.WhichOneof("event"):
        case "started":
            return RunStarted(Workflow.of(raw.started.workflow))
        case "phase_started":
            began = raw.phase_started
            return PhaseStarted(began.phase, began.round, began.topology, began.channel, tuple(began.agents))
        case "agent_speaking":
            speaking = raw.agent_speaking
            return Speaking(speaking.agent_id, Memory.of_report(speaking.cache), speaking.phase, speaking.round)
        case "agent_delta":
            return Said(raw.agent_delta.agent_id, raw.agent_delta.text)
        case "agent_spoke":
            spoke = raw.agent_spoke
            return Spoke(spoke.agent_id, spoke.text, spoke.phase, spoke.round, *_measured(spoke))
        case "agents_heard":
            heard = raw.agents_heard
            return Heard(heard.speaker, tuple(heard.listeners), heard.channel, tuple(heard.bystanders))
        case "agent_listened":
            took = raw.agent_listened
            return Listened(took.agent_id, took.phase, took.round, took.note, *_measured(took))
        case "phase_outcome":
            ended = raw.phase_outcome
            return Outcome(ended.phase, json.loads(ended.outcome_json or "null"), ended.rounds)
        case "finished":
            return RunFinished(Workflow.of(raw.finished.workflow))
    return None


def _measured(
    turn: workflow_pb2.AgentSpoke | workflow_pb2.AgentListened,
) -> tuple[Usage, Timings, Version, Memory, bool]:
    report: types_pb2.CacheReport = turn.cache
    return (
        usage_of(turn.usage),
        timings_of(turn.timings),
        Version.of(turn.version),
        Memory.of_report(report),
        turn.replayed,
    )
