"""What happens next in a workflow, as a pure function of its definition and of what was said so far.

A program gives steps. The turns of a step run at the same time; its listenings run meanwhile, and an agent's work is
done in the order in which it is given here: listenings, then turns. What was said in the turns is what the next step is
asked for with.

An agent takes in what it heard as late as costs nobody time, so that what many said is one prompt: while the one before
it speaks, or at the end of the phase; what is left it reads with its own prompt. Where listeners take notes, each
utterance is noted at once.
"""

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from gateway.workflows import outcomes
from gateway.workflows.audience import Audience, audience, present
from gateway.workflows.definition.schema import Definition, Phase
from gateway.workflows.definition.templates import fill
from gateway.workflows.hearing import Inboxes, Listening, takes_notes
from gateway.workflows.upcoming import Place, Speech, distances, schedule


class Turn(NamedTuple):
    """An agent reads `message` and speaks. `json_schema` is what its answer is held to; empty: nothing."""

    agent: str
    message: str
    max_tokens: int
    audience: Audience
    json_schema: str = ""


class PhaseEnd(NamedTuple):
    """A phase that is over: its name, its outcome ({} where the definition asks for none), and its rounds."""

    phase: str
    outcome: dict[str, Any]
    rounds: int


class Step(NamedTuple):
    """What is done next.

    `place` is the index in `upcoming.schedule` of the turns; -1 before the first of them. A step without turns
    introduces the agents (round 0), or is the last of its phase: they take in what is left. `ended` is the phase that
    ended just before.
    """

    place: int
    phase: str
    round: int
    listenings: tuple[Listening, ...]
    turns: tuple[Turn, ...]
    ended: PhaseEnd | None = None


class Program:
    """A workflow, step by step. `definition` is checked, and its variables have their values."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._places = schedule(definition)
        self._values = _Values(definition.variables)
        self._inboxes = Inboxes(definition)
        self._steps = self._run()
        self._begun = False

    def advance(self, said: Mapping[str, str]) -> Step | None:
        """The next step, given what was said in the turns of the one before, by agent; None when the run is over."""
        try:
            if self._begun:
                return self._steps.send(said)
            self._begun = True
            return next(self._steps)
        except StopIteration:
            return None

    def upcoming(self, place: int) -> dict[str, int | None]:
        """Steps from a place until each agent speaks again, if nothing ends a phase early; None for never."""
        return distances(self._places, place, list(self.definition.agents))

    def _run(self) -> Generator[Step, Mapping[str, str], None]:
        takes_part = {name for phase in self.definition.phases for name in present(phase)}
        introductions = tuple(
            Listening(name, fill(agent.system, {**self._values, "agent": name}), role="system")
            for name, agent in self.definition.agents.items()
            if agent.system and name in takes_part
        )
        if introductions:
            yield Step(-1, "", 0, introductions, ())
        ended: PhaseEnd | None = None
        for index, phase in enumerate(self.definition.phases):
            places = [(at, place) for at, place in enumerate(self._places) if place.phase == index]
            ended = yield from self._phase(phase, places, ended)
        yield Step(len(self._places), "", 0, (), (), ended)

    def _phase(
        self, phase: Phase, places: list[tuple[int, Place]], before: PhaseEnd | None
    ) -> Generator[Step, Mapping[str, str], PhaseEnd]:
        for name in present(phase) if phase.opening else ():
            self._inboxes.put(name, fill(phase.opening, self._named(phase, 1, name)))
        last: dict[str, str] = {}
        this_round: dict[str, list[str]] = {}
        rounds = 0
        for at, place in places:
            if place.step == 0:
                if this_round and _stops(phase, this_round, last):
                    break
                this_round = {}
            listenings = self._listenings(phase, at, {speech.speaker for speech in place.speeches})
            turns = tuple(self._turn(phase, place.round, speech) for speech in place.speeches)
            said = yield Step(at, phase.name, place.round, listenings, turns, before)
            before = None
            for turn in turns:
                last[turn.agent] = text = said[turn.agent].strip()
                this_round.setdefault(turn.agent, []).append(text)
                self._inboxes.tell(turn.agent, turn.audience, text, self._named(phase, place.round, turn.agent))
            rounds = place.round
        if left := [each for name in self._inboxes.waiting() for each in self._inboxes.listen(name, phase)]:
            yield Step(at, phase.name, rounds, tuple(left), ())
        self._values |= {f"said.{phase.name}.{name}": text for name, text in last.items()}
        outcome = outcomes.read(phase.outcome, phase, last) if phase.outcome is not None else {}
        self._values |= outcomes.values(phase.name, outcome)
        return PhaseEnd(phase.name, outcome, rounds)

    def _listenings(self, phase: Phase, at: int, speakers: set[str]) -> tuple[Listening, ...]:
        """Who takes in what it heard while others speak, or before it does."""
        waiting = self._inboxes.waiting()
        if not takes_notes(phase, self.definition.defaults.listening):
            upcoming = self.upcoming(at)
            waiting = [name for name in waiting if name not in speakers and upcoming[name] == 1]
        return tuple(each for name in waiting for each in self._inboxes.listen(name, phase))

    def _turn(self, phase: Phase, number: int, speech: Speech) -> Turn:
        name, defaults = speech.speaker, self.definition.defaults
        named = self._named(phase, number, name)
        prompt = phase.prompts
        if not isinstance(prompt, str):
            prompt = prompt.get(name, prompt.get("*", ""))
        lines = (self._inboxes.read(name), fill(prompt, named))
        message = "\n".join(line for line in lines if line) or fill(defaults.cue, named)
        return Turn(
            name,
            message,
            phase.max_tokens or self.definition.agents[name].max_tokens or defaults.max_tokens,
            audience(phase, name, speech.to),
            outcomes.held_to(phase.outcome, phase, name),
        )

    def _named(self, phase: Phase, number: int, agent: str) -> "_Values":
        """What templates can name at this place."""
        return _Values({**self._values, "phase": phase.name, "round": str(number), "agent": agent})


class _Values(dict[str, str]):
    """Values by name. What an outcome could have had is none: a JSON object may lack what its schema allows."""

    def __missing__(self, name: str) -> str:
        if name.startswith("outcome."):
            return "none"
        raise KeyError(name)


def _stops(phase: Phase, this_round: Mapping[str, list[str]], last: Mapping[str, str]) -> bool:
    """Whether a phase ends with the round in which this was said."""
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
