"""What agents have heard and not read yet. Pure.

What is heard is read in one user message, a line for each utterance, since templates of some models refuse two user
messages in a row. Where listeners take notes each utterance is a message of its own, which has its note.
"""

from typing import NamedTuple

from gateway.workflows.audience import Audience
from gateway.workflows.definition.schema import Definition, Phase
from gateway.workflows.filling import check_unread, filled


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
        self._variables = definition.variables
        self._unread: dict[str, list[str]] = {name: [] for name in definition.agents}
        self._characters = dict.fromkeys(definition.agents, 0)

    def put(self, agent: str, line: str, phase: str) -> None:
        """Something to read, unless it is empty. Raises FailedPrecondition if it is too much with what is unread."""
        if line:
            self._characters[agent] += len(line) + 1
            check_unread(self._characters[agent], agent, phase)
            self._unread[agent].append(line)

    def tell(self, speaker: str, audience: Audience, text: str, phase: str) -> None:
        """What was said in a phase, for those who hear it, and that it was, for those who only see it.

        Raises FailedPrecondition if that is too much to read.
        """
        told = {**self._variables, "speaker": speaker, "listeners": ", ".join(audience.listeners)}
        for agent in audience.listeners:
            what = f"defaults.hears, as {agent} would read it of {speaker} in phase {phase},"
            self.put(agent, filled(self._defaults.hears, {**told, "agent": agent, "text": text}, what), phase)
        for agent in audience.bystanders:
            what = f"defaults.notice, as {agent} would read it of {speaker} in phase {phase},"
            self.put(agent, filled(self._defaults.notice, {**told, "agent": agent}, what), phase)

    def waiting(self) -> list[str]:
        """Agents that have something to read."""
        return [agent for agent, lines in self._unread.items() if lines]

    def read(self, agent: str) -> str:
        """All that an agent has to read, which is read now; empty if there is nothing."""
        return "\n".join(self._taken(agent))

    def listen(self, agent: str, phase: Phase) -> tuple[Listening, ...]:
        """How an agent takes in what it has to read, which is read now."""
        if not takes_notes(phase, self._defaults.listening):
            return (Listening(agent, text),) if (text := self.read(agent)) else ()
        return tuple(Listening(agent, line, notes=True) for line in self._taken(agent))

    def _taken(self, agent: str) -> list[str]:
        lines, self._unread[agent], self._characters[agent] = self._unread[agent], [], 0
        return lines


def takes_notes(phase: Phase, default: str) -> bool:
    """Whether listeners answer for themselves what they hear in a phase."""
    return (phase.listening or default) == "notes"
