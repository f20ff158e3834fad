"""Utterances that agents have heard and not read yet. Pure.

They are read in one user message, since some templates refuse two in a row.
"""

from typing import Final, NamedTuple

from agentmem.errors import FailedPrecondition
from gateway.workflows.definition.schema import Definition, Phase
from gateway.workflows.definition.templates import fill_within_bounds
from gateway.workflows.topology import Audience

MAX_UNREAD: Final = 1024 * 1024
"""Characters of what one agent has to read at a time."""


class Listening(NamedTuple):
    """`role` "system" introduces a new agent."""

    agent: str
    message: str
    notes: bool = False
    role: str = "user"


class Inboxes:
    def __init__(self, definition: Definition) -> None:
        self._defaults = definition.defaults
        self._variables = definition.variables
        self._unread: dict[str, list[str]] = {name: [] for name in definition.agents}
        self._characters = dict.fromkeys(definition.agents, 0)

    def put(self, agent: str, line: str, phase: str) -> None:
        """Raise FailedPrecondition if it is too much with what is unread."""
        if line:
            self._characters[agent] += len(line) + 1
            if self._characters[agent] > MAX_UNREAD:
                raise FailedPrecondition(
                    f"{agent} would have more than {MAX_UNREAD} characters to read at a time in phase {phase}; give "
                    "the phase fewer rounds, or agents a smaller max_tokens, and begin another run"
                )
            self._unread[agent].append(line)

    def tell(self, speaker: str, audience: Audience, text: str, phase: str) -> None:
        """Put an utterance to those who hear it, and a notice to those who see it. Raises as `put`."""
        named = {**self._variables, "speaker": speaker, "listeners": ", ".join(audience.listeners)}
        for field, agents, more in (("hears", audience.listeners, {"text": text}), ("notice", audience.bystanders, {})):
            for agent in agents:
                what = f"defaults.{field}, as {agent} would read it of {speaker} in phase {phase},"
                values = {**named, **more, "agent": agent}
                self.put(agent, fill_within_bounds(getattr(self._defaults, field), values, what), phase)

    def waiting(self) -> list[str]:
        return [agent for agent, lines in self._unread.items() if lines]

    def read(self, agent: str) -> str:
        return "\n".join(self._taken(agent))

    def listen(self, agent: str, phase: Phase) -> tuple[Listening, ...]:
        if not takes_notes(phase, self._defaults.listening):
            return (Listening(agent, text),) if (text := self.read(agent)) else ()
        return tuple(Listening(agent, line, notes=True) for line in self._taken(agent))

    def _taken(self, agent: str) -> list[str]:
        lines, self._unread[agent], self._characters[agent] = self._unread[agent], [], 0
        return lines


def takes_notes(phase: Phase, default: str) -> bool:
    return (phase.listening or default) == "notes"
