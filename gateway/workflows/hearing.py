"""What agents have heard and not read yet. Pure.

What is heard is read in one user message, a line for each utterance, since templates of some models refuse two user
messages in a row. Where listeners take notes each utterance is a message of its own, which has its note.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gateway.workflows.audience import Audience
from gateway.workflows.definition.schema import Definition, Phase
from gateway.workflows.definition.templates import fill


class Listening(NamedTuple):
    """An agent reads `message` and says nothing, or notes something for itself.

    `role` is "system" where the agent is introduced, which only a new agent needs.
    """

    agent: str
    message: str
    notes: bool = False
    role: str = "user"


class Inboxes:
    """Unread lines by agent."""

    def __init__(self, definition: Definition) -> None:
        self._defaults = definition.defaults
        self._unread: dict[str, list[str]] = {name: [] for name in definition.agents}

    def put(self, agent: str, line: str) -> None:
        """Something to read, unless it is empty."""
        if line:
            self._unread[agent].append(line)

    def tell(self, speaker: str, audience: Audience, text: str, values: Mapping[str, str]) -> None:
        """What was said, for those who hear it, and that it was, for those who only see it."""
        told = {**values, "speaker": speaker, "listeners": ", ".join(audience.listeners)}
        for agent in audience.listeners:
            self.put(agent, fill(self._defaults.hears, {**told, "agent": agent, "text": text}))
        for agent in audience.bystanders:
            self.put(agent, fill(self._defaults.notice, {**told, "agent": agent}))

    def waiting(self) -> list[str]:
        """Agents that have something to read."""
        return [agent for agent, lines in self._unread.items() if lines]

    def read(self, agent: str) -> str:
        """All that an agent has to read, which is read now; empty if there is nothing."""
        lines, self._unread[agent] = self._unread[agent], []
        return "\n".join(lines)

    def listen(self, agent: str, phase: Phase) -> tuple[Listening, ...]:
        """How an agent takes in what it has to read, which is read now."""
        if not takes_notes(phase, self._defaults.listening):
            return (Listening(agent, text),) if (text := self.read(agent)) else ()
        lines, self._unread[agent] = self._unread[agent], []
        return tuple(Listening(agent, line, notes=True) for line in lines)


def takes_notes(phase: Phase, default: str) -> bool:
    """Whether listeners answer for themselves what they hear in a phase."""
    return (phase.listening or default) == "notes"
