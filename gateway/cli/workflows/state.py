"""A run as its events tell of it, and what memory saved. Pure: the view reads from here."""

from dataclasses import dataclass, field
from typing import Literal

from agentmem.v1 import types_pb2, workflow_pb2
from agentmem.words import cached_tokens, short_name
from gateway.cli.text import counted

Doing = Literal["speaking", "listening", "idle"]
"""An agent that listens has heard something that it has not taken in yet."""

GAP = "… "
"""Stands for what a lost connection has cost of an utterance that goes on."""


@dataclass
class Step:
    """A turn or a listening that is durable, and what the agent's ledger held before it, as far as the run knows."""

    event: workflow_pb2.AgentSpoke | workflow_pb2.AgentListened
    ledger_before: int

    @property
    def text(self) -> str:
        """Return what was said, or noted."""
        return self.event.text if isinstance(self.event, workflow_pb2.AgentSpoke) else self.event.note

    @property
    def spoke(self) -> bool:
        """Return whether it was a turn."""
        return isinstance(self.event, workflow_pb2.AgentSpoke)

    @property
    def reused(self) -> int:
        """Return the prompt tokens that came from memory."""
        return cached_tokens(self.event.usage)

    @property
    def prefilled(self) -> int:
        """Return the prompt tokens that were computed."""
        return max(0, self.event.usage.prompt_tokens - self.reused)

    @property
    def again(self) -> int:
        """Return the tokens of the ledger that were computed another time, because of a cache miss."""
        if not self.event.cache.miss_reason:
            return 0
        return max(0, min(self.ledger_before, self.event.usage.prompt_tokens) - self.reused)


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


class Run:
    """A run so far. `add` each event, in the order in which they come."""

    def __init__(self) -> None:
        self.workflow = workflow_pb2.Workflow()
        self.members: dict[str, Member] = {}
        self.steps: list[Step] = []
        self.sequence = 0
        """Of the last event of the log; 0 before the first."""
        self.log: list[workflow_pb2.RunWorkflowResponse] = []
        """The events of the log so far."""
        self.finished = False
        self._began = self._latest = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds from the first event of the log to the last."""
        return self._latest - self._began

    def add(self, event: workflow_pb2.RunWorkflowResponse) -> bool:
        """Take an event in. Return False if it was known already, and is not to be shown."""
        kind = event.WhichOneof("event")
        # What is not in the log has the number of the event before it: growing text, and the end of a run that failed.
        if kind not in ("agent_speaking", "agent_delta", "finished") and event.sequence <= self.sequence:
            return False
        if self.finished:
            return False
        if event.sequence > self.sequence:
            self.log.append(event)
        self.sequence = max(self.sequence, event.sequence)
        self._latest = event.time.ToNanoseconds() / 1e9
        self._began = self._began or self._latest
        match kind:
            case "started":
                self._workflow(event.started.workflow)
            case "phase_started":
                began = event.phase_started
                for name in began.agents:
                    self._member(name).phase = began.phase
            case "agent_speaking":
                member = self._member(event.agent_speaking.agent_id)
                member.phase, member.doing, member.saying = event.agent_speaking.phase, "speaking", ""
            case "agent_delta":
                member = self._member(event.agent_delta.agent_id)
                if member.doing != "speaking":  # it had begun before this was followed
                    member.doing, member.saying = "speaking", GAP
                member.saying += event.agent_delta.text
            case "agent_spoke" | "agent_listened":
                self._step(getattr(event, kind))
            case "agents_heard":
                self._heard(event.agents_heard)
            case "finished":
                self._workflow(event.finished.workflow)
                self.finished = True
                for member in self.members.values():
                    member.doing, member.saying = "idle", ""
        return True

    def interrupt(self) -> None:
        """Note that the connection was lost: of what is being said, something may be missing from here on."""
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

    def _step(self, event: workflow_pb2.AgentSpoke | workflow_pb2.AgentListened) -> None:
        member = self._member(event.agent_id)
        step = Step(event, member.ledger_tokens)
        self.steps.append(step)
        member.last, member.doing, member.saying = step, "idle", ""
        member.turns += step.spoke
        member.ledger_tokens = event.usage.prompt_tokens + event.usage.completion_tokens

    def _heard(self, heard: workflow_pb2.AgentsHeard) -> None:
        for name in (*heard.listeners, *heard.bystanders):
            member = self._member(name)
            if member.doing == "idle":
                member.doing = "listening"


class Totals:
    """Counts of a run: of steps, of tokens, and the seconds from its first event to its last.

    `resent` is what a server without memory prefills: the whole ledger for each turn and each note. A listener costs
    nothing there, so `prefilled`, which has all steps, may be more where many hear and few speak. `saved` are tokens
    that were not prefilled, against sending each ledger again; `share` is theirs of `resent`, 0 where nothing was said.
    """

    def __init__(self, run: Run) -> None:
        steps = run.steps
        said = [step for step in steps if step.spoke or step.text]
        self.turns = sum(step.spoke for step in steps)
        self.resent = sum(step.event.usage.prompt_tokens for step in said)
        self.prefilled = sum(step.prefilled for step in steps)
        self.reused = sum(step.reused for step in steps)
        self.again = sum(step.again for step in steps)
        self.replayed = sum(step.event.replayed for step in steps)
        self.seconds = run.seconds
        self.saved = self.resent - self.prefilled
        self.share = self.saved / self.resent if self.resent else 0.0


def state_name(workflow: workflow_pb2.Workflow) -> str:
    """Return "running", "succeeded", "failed", "cancelled" or "interrupted"."""
    return short_name(workflow_pb2.WorkflowState.DESCRIPTOR, workflow.state) or "unknown"


def totals_line(run: Run) -> str:
    """Return how the run ended, and what was prefilled: "succeeded: 25 turns in 3.1 s · prefilled 900 tokens, …"."""
    sums = Totals(run)
    parts = [f"{state_name(run.workflow)}: {counted(sums.turns, 'turn')} in {sums.seconds:.1f} s"]
    if sums.resent:
        parts.append(
            f"prefilled {sums.prefilled:,} tokens, where sending each ledger again takes {sums.resent:,}: "
            f"{sums.share:.0%} saved"
        )
        parts.append(f"{sums.again:,} computed another time")
    if sums.replayed:
        parts.append(f"{sums.replayed:,} replayed")
    return " · ".join(parts)
