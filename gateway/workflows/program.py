"""The next step of a workflow, a pure function of its definition and of what was said so far.

The turns of a step run at the same time, and its listenings meanwhile. An agent takes in what it heard as late as costs
no time, so that what many said is one prompt.
"""

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from gateway.workflows import outcomes
from gateway.workflows.definition.schema import Definition, Phase
from gateway.workflows.definition.templates import fill_within_bounds, outcome_text
from gateway.workflows.inboxes import Inboxes, Listening, takes_notes
from gateway.workflows.topology import Audience, Place, Speech, audience, distances, present, schedule


class Turn(NamedTuple):
    """`json_schema` is "" where the agent is free."""

    agent: str
    message: str
    max_tokens: int
    audience: Audience
    json_schema: str = ""


class PhaseEnd(NamedTuple):
    """`outcome` is {} for none."""

    phase: str
    outcome: dict[str, Any]
    rounds: int


class Step(NamedTuple):
    """`place` is an index in `topology.schedule`, -1 before the first. `number` counts the steps of a round from 0. A
    step without turns introduces the agents (round 0), or is the last of its phase. `ended` is the phase before.
    """

    place: int
    phase: str
    round: int
    number: int
    listenings: tuple[Listening, ...]
    turns: tuple[Turn, ...]
    ended: PhaseEnd | None = None


class Program:
    """`definition` is checked, and its variables have their values."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._places = schedule(definition)
        self._values = _Values(definition.variables, {})
        self._inboxes = Inboxes(definition)
        self._steps = self._run()
        self._begun = False

    def advance(self, said: Mapping[str, str]) -> Step | None:
        """Return the next step, given what was said in the one before, by agent; None after the last.

        Raise FailedPrecondition if more was said than its readers may read.
        """
        try:
            if self._begun:
                return self._steps.send(said)
            self._begun = True
            return next(self._steps)
        except StopIteration:
            return None

    def upcoming(self, place: int) -> dict[str, int | None]:
        """Return the steps until each agent speaks again, if no phase ends early; None for never."""
        return distances(self._places, place, list(self.definition.agents))

    def _run(self) -> Generator[Step, Mapping[str, str], None]:
        takes_part = {name for phase in self.definition.phases for name in present(phase)}
        introductions = tuple(
            Listening(name, self._filled(agent.system, f"agents.{name}.system", agent=name), role="system")
            for name, agent in self.definition.agents.items()
            if agent.system and name in takes_part
        )
        if introductions:
            yield Step(-1, "", 0, 0, introductions, ())
        ended: PhaseEnd | None = None
        for index, phase in enumerate(self.definition.phases):
            places = [(at, place) for at, place in enumerate(self._places) if place.phase == index]
            ended = yield from self._phase(phase, places, ended)
        yield Step(len(self._places), "", 0, 0, (), (), ended)

    def _phase(
        self, phase: Phase, places: list[tuple[int, Place]], before: PhaseEnd | None
    ) -> Generator[Step, Mapping[str, str], PhaseEnd]:
        for name in present(phase) if phase.opening else ():
            what = f"the opening of phase {phase.name}, as {name} would read it,"
            self._inboxes.put(name, self._filled(phase.opening, what, agent=name, phase=phase.name), phase.name)
        last: dict[str, str] = {}
        this_round: dict[str, list[str]] = {}
        rounds = number = 0
        for at, place in places:
            if place.step == 0:
                if this_round and _stops(phase, this_round, last):
                    break
                this_round = {}
            listenings = self._listenings(phase, at, {speech.speaker for speech in place.speeches})
            turns = tuple(self._turn(phase, place.round, speech) for speech in place.speeches)
            said = yield Step(at, phase.name, place.round, place.step, listenings, turns, before)
            before = None
            for turn in turns:
                last[turn.agent] = text = said[turn.agent].strip()
                this_round.setdefault(turn.agent, []).append(text)
                self._inboxes.tell(turn.agent, turn.audience, text, phase.name)
            rounds, number = place.round, place.step
        if left := [each for name in self._inboxes.waiting() for each in self._inboxes.listen(name, phase)]:
            yield Step(at, phase.name, rounds, number, tuple(left), ())
        self._values |= {f"said.{phase.name}.{name}": text for name, text in last.items()}
        outcome = outcomes.read(phase.outcome, phase, last) if phase.outcome is not None else {}
        self._values.outcomes[phase.name] = outcome
        return PhaseEnd(phase.name, outcome, rounds)

    def _listenings(self, phase: Phase, at: int, speakers: set[str]) -> tuple[Listening, ...]:
        """Return who takes in what it heard before it speaks."""
        waiting = self._inboxes.waiting()
        if not takes_notes(phase, self.definition.defaults.listening):
            upcoming = self.upcoming(at)
            waiting = [name for name in waiting if name not in speakers and upcoming[name] == 1]
        return tuple(each for name in waiting for each in self._inboxes.listen(name, phase))

    def _turn(self, phase: Phase, number: int, speech: Speech) -> Turn:
        name, defaults = speech.speaker, self.definition.defaults
        prompt = phase.prompts
        if not isinstance(prompt, str):
            prompt = prompt.get(name, prompt.get("*", ""))
        named = {"agent": name, "phase": phase.name, "round": str(number)}
        lines = self._inboxes.read(name), self._filled(prompt, f"the prompt of {name} in phase {phase.name}", **named)
        message = "\n".join(filter(None, lines)) or self._filled(defaults.cue, "defaults.cue", **named)
        return Turn(
            name,
            message,
            phase.max_tokens or self.definition.agents[name].max_tokens or defaults.max_tokens,
            audience(phase, name, speech.to),
            outcomes.held_to(phase.outcome, phase, name),
        )

    def _filled(self, text: str, what: str, **named: str) -> str:
        return fill_within_bounds(text, self._values.at(**named), what)


class _Values(dict[str, str]):
    """A missing field of an outcome is "none"."""

    def __init__(self, values: Mapping[str, str], outcomes: dict[str, dict[str, Any]]) -> None:
        super().__init__(values)
        self.outcomes = outcomes

    def at(self, **named: str) -> "_Values":
        return _Values({**self, **named}, self.outcomes)

    def __missing__(self, name: str) -> str:
        kind, _, rest = name.partition(".")
        if kind != "outcome":
            raise KeyError(name)
        phase, _, field = rest.partition(".")
        return outcome_text(self.outcomes[phase], field)


def _stops(phase: Phase, this_round: Mapping[str, list[str]], last: Mapping[str, str]) -> bool:
    until = phase.until
    if until is None:
        return False
    holds = True
    if until.said is not None:
        wanted = until.said.casefold()
        by = {name: any(wanted in text.casefold() for text in texts) for name, texts in this_round.items()}
        holds = {"any": any(by.values()), "all": all(by.values())}.get(until.by, by.get(until.by, False))
    if until.unanimous and phase.outcome is not None:
        holds = holds and bool(outcomes.read(phase.outcome, phase, last).get("unanimous"))
    return holds
