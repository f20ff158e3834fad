"""A run as its events tell of it. Pure: what the view shows and the report adds up is read from here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentmem.v1 import types_pb2, workflow_pb2
from gateway.memory_report import cached_tokens

Doing = Literal["speaking", "listening", "idle"]
"""`listening` is who has heard something that it has not taken in yet."""

GAP = "… "
"""Stands for what a lost connection has cost of an utterance that goes on."""


@dataclass
class Step:
    """A turn or a listening that is durable, and what the agent's ledger held before it, as far as the run knows."""

    told: workflow_pb2.AgentSpoke | workflow_pb2.AgentListened
    ledger_before: int
    heard: workflow_pb2.AgentsHeard | None = None

    @property
    def text(self) -> str:
        """What was said, or noted."""
        return self.told.text if isinstance(self.told, workflow_pb2.AgentSpoke) else self.told.note

    @property
    def spoke(self) -> bool:
        """It was a turn."""
        return isinstance(self.told, workflow_pb2.AgentSpoke)

    @property
    def reused(self) -> int:
        """Prompt tokens that came from memory."""
        return cached_tokens(self.told.usage)

    def reused_from(self, tier: types_pb2.Tier.ValueType) -> int:
        """Prompt tokens that came from one tier."""
        return sum(part.tokens for part in self.told.usage.cached if part.tier == tier)

    @property
    def prefilled(self) -> int:
        """Prompt tokens that were computed."""
        return max(0, self.told.usage.prompt_tokens - self.reused)

    @property
    def again(self) -> int:
        """Tokens of the ledger that were computed another time, because something was missed."""
        if not self.told.cache.miss_reason:
            return 0
        return max(0, min(self.ledger_before, self.told.usage.prompt_tokens) - self.reused)


@dataclass
class Member:
    """An agent of the run, as it stands."""

    name: str
    key: types_pb2.AgentKey = field(default_factory=types_pb2.AgentKey)
    persists: bool = False
    phase: str = ""
    doing: Doing = "idle"
    saying: str = ""
    turns: int = 0
    ledger_tokens: int = 0
    last: Step | None = None


@dataclass
class Part:
    """A phase: its rounds as they began, what was said and taken in, and what came out of it."""

    name: str
    rounds: list[workflow_pb2.PhaseStarted] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outcome: workflow_pb2.PhaseOutcome | None = None


class Run:
    """All that the events told so far. `tell` it each event, in the order in which they come."""

    def __init__(self) -> None:
        self.workflow = workflow_pb2.Workflow()
        self.members: dict[str, Member] = {}
        self.parts: dict[str, Part] = {}
        self.sequence = 0
        """Of the last event of the log; 0 before the first."""
        self.finished = False
        self._began = self._latest = 0.0

    @property
    def seconds(self) -> float:
        """From the first event of the log to the last."""
        return self._latest - self._began

    def steps(self) -> Iterator[Step]:
        """All steps, by phase."""
        for part in self.parts.values():
            yield from part.steps

    def tell(self, event: workflow_pb2.RunWorkflowResponse) -> bool:
        """Take an event in. False: it was known already, and is not to be shown."""
        kind = event.WhichOneof("event")
        # What is not in the log has the number of the event before it: growing text, and the end of a run that failed.
        if kind not in ("agent_speaking", "agent_delta", "finished") and event.sequence <= self.sequence:
            return False
        if self.finished:
            return False
        self.sequence = max(self.sequence, event.sequence)
        self._latest = event.time.ToNanoseconds() / 1e9
        self._began = self._began or self._latest
        match kind:
            case "started":
                self._workflow(event.started.workflow)
            case "phase_started":
                self._phase(event.phase_started)
            case "agent_speaking":
                self._speaking(event.agent_speaking)
            case "agent_delta":
                self._delta(event.agent_delta)
            case "agent_spoke":
                self._step(event.agent_spoke)
            case "agents_heard":
                self._heard(event.agents_heard)
            case "agent_listened":
                self._step(event.agent_listened)
            case "phase_outcome":
                self._part(event.phase_outcome.phase).outcome = event.phase_outcome
            case "finished":
                self._workflow(event.finished.workflow)
                self.finished = True
                for member in self.members.values():
                    member.doing, member.saying = "idle", ""
        return True

    def broke(self) -> None:
        """The connection was lost: of what is being said, something may be missing from here on."""
        for member in self.members.values():
            if member.doing == "speaking":
                member.saying = GAP

    def _workflow(self, workflow: workflow_pb2.Workflow) -> None:
        self.workflow = workflow
        for agent in workflow.agents:
            member = self._member(agent.name)
            member.key, member.persists = agent.key, agent.persists

    def _member(self, name: str) -> Member:
        return self.members.setdefault(name, Member(name))

    def _part(self, name: str) -> Part:
        return self.parts.setdefault(name, Part(name))

    def _phase(self, began: workflow_pb2.PhaseStarted) -> None:
        self._part(began.phase).rounds.append(began)
        for name in began.agents:
            self._member(name).phase = began.phase

    def _speaking(self, speaking: workflow_pb2.AgentSpeaking) -> None:
        member = self._member(speaking.agent_id)
        member.phase, member.doing, member.saying = speaking.phase, "speaking", ""

    def _delta(self, delta: workflow_pb2.AgentDelta) -> None:
        member = self._member(delta.agent_id)
        if member.doing != "speaking":  # It had begun before this was followed.
            member.doing, member.saying = "speaking", GAP
        member.saying += delta.text

    def _step(self, told: workflow_pb2.AgentSpoke | workflow_pb2.AgentListened) -> None:
        member = self._member(told.agent_id)
        step = Step(told, member.ledger_tokens)
        self._part(told.phase).steps.append(step)
        member.last, member.doing, member.saying = step, "idle", ""
        member.turns += step.spoke
        member.ledger_tokens = told.usage.prompt_tokens + told.usage.completion_tokens

    def _heard(self, heard: workflow_pb2.AgentsHeard) -> None:
        speaker = self._member(heard.speaker).last
        if speaker is not None:
            speaker.heard = heard
        for name in (*heard.listeners, *heard.bystanders):
            member = self._member(name)
            if member.doing == "idle":
                member.doing = "listening"
