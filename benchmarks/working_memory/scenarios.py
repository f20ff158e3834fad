"""Generated workflows in which facts are told, passed on and asked for, and what each agent could know. Pure.

    public    two agents say a fact before all
    private   each agent says a fact of its own to one other
    whisper   two agents whisper a fact to one or two
    relay     in pairs, each is asked for something that it knows
    ask-1 …   everybody is asked at the same time, and answers to the judge alone

Who knows what is written down here without the gateway's listeners: an oracle for the gateway. All values differ, and
the demo model was not trained on the pairs.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.demo_model.filler import count_tokens, filler_text
from benchmarks.demo_model.world import AGENTS, ENTITIES, HELD_OUT_STRIDE, Fact, Kind, unknown_answer

JUDGE = "judge"
"""Hears the answers, and is not counted among the agents."""
ASKED = ("known", "known", "withheld", "known", "never told")
"""Subjects of an agent's questions, in turns; "withheld" was told to others."""
_TALKS = (0.15, 0.25, 0.6)
"""Shares of the filler after public, private and relayed facts."""
_LARGEST_TALK = 2500
"""Tokens of filler in one prompt, which a workflow file limits."""


class Learned(NamedTuple):
    """How an agent learned a fact: "said", "public", "private", "whisper" or "relay"; by the phase's end."""

    phase: int
    how: str


@dataclass(frozen=True)
class Question:
    """`how` it learned the fact, or "withheld" or "never told"."""

    phase: str
    agent: str
    kind: Kind
    entity: str
    how: str
    expected: str

    @property
    def known(self) -> bool:
        return self.how not in ("withheld", "never told")


@dataclass
class Scenario:
    """A workflow's data, and the truth of it. `agents` are without the judge."""

    agents: tuple[str, ...]
    definition: dict[str, Any]
    facts: tuple[Fact, ...]
    learned: dict[str, dict[Fact, Learned]]
    questions: list[Question]
    phases: list[str] = field(default_factory=list)

    def could_know(self, agent: str, phase: str) -> frozenset[Fact]:
        if agent == JUDGE:
            return frozenset(self.facts)
        until = self.phases.index(phase)
        return frozenset(fact for fact, learned in self.learned[agent].items() if learned.phase <= until)


def make_scenario(agents: int, tokens: int, seed: int) -> Scenario:
    """Make a scenario of 3 agents or more, with ledgers of about `tokens` tokens."""
    return _Writer(agents, tokens, random.Random(f"{seed}/{agents}")).scenario()


class _Writer:
    def __init__(self, agents: int, tokens: int, rng: random.Random) -> None:
        self._rng = rng
        self._agents = tuple(rng.sample(AGENTS, agents))
        self._filler = tokens
        self._facts = _facts(rng)
        self._told: list[Fact] = []
        self._phases: list[dict[str, Any]] = []
        self._learned: dict[str, dict[Fact, Learned]] = {name: {} for name in self._agents}

    def scenario(self) -> Scenario:
        before, between, after = (round(self._filler * share) for share in _TALKS)
        self._say("public", self._rng.sample(self._agents, 2), {})
        self._talk("talk-1", before)
        circle = self._rng.sample(self._agents, len(self._agents))
        self._say("private", circle, {each: [after] for each, after in zip(circle, _shifted(circle), strict=True)})
        self._talk("talk-2", between)
        speakers = self._rng.sample(self._agents, 2)
        self._say("whisper", speakers, {each: self._some_others(each) for each in speakers})
        self._relay()
        parts = -(-after // _LARGEST_TALK)
        for part in range(parts):
            self._talk(f"talk-{3 + part}", after // parts)
        questions = self._ask()
        return Scenario(
            agents=self._agents,
            definition=self._definition(),
            facts=tuple(self._told),
            learned=self._learned,
            questions=questions,
            phases=[phase["name"] for phase in self._phases],
        )

    def _definition(self) -> dict[str, Any]:
        return {
            "workflow": f"working-memory-{len(self._agents)}",
            "defaults": {"model": "demo", "max_tokens": 40, "listening": "notes"},
            "agents": {name: {"system": "You are ${agent}."} for name in (*self._agents, JUDGE)},
            "phases": self._phases,
        }

    def _some_others(self, agent: str) -> list[str]:
        others = [each for each in self._agents if each != agent]
        return self._rng.sample(others, min(len(others) - 1, self._rng.randint(1, 2)))

    def _say(self, channel: str, speakers: Sequence[str], to: Mapping[str, list[str]]) -> None:
        told = {speaker: next(self._facts) for speaker in speakers}
        self._told += told.values()
        everybody = len(speakers) == len(self._agents)
        phase = {
            "name": channel,
            "topology": "all_at_once" if everybody else "round_robin",
            "agents": list(speakers),
            "listeners": [] if everybody else [each for each in self._agents if each not in speakers],
            "channel": channel,
            "to": dict(to),
            "prompts": {speaker: fact.answer for speaker, fact in told.items()},
        }
        number = self._add(phase)
        for speaker, fact in told.items():
            self._learned[speaker][fact] = Learned(number, "said")
            for listener in to.get(speaker, [each for each in self._agents if each != speaker]):
                self._learned[listener][fact] = Learned(number, channel)

    def _relay(self) -> None:
        circle = self._rng.sample(self._agents, len(self._agents))
        pairs = list(zip(circle[::2], circle[1::2], strict=False))
        asked = {}
        for pair in pairs:
            for agent, partner in (pair, pair[::-1]):
                known = list(self._learned[agent])
                news = [fact for fact in known if fact not in self._learned[partner]]
                asked[agent] = self._rng.choice(news or known)
        phase = {
            "name": "relay",
            "topology": "pairs",
            "agents": list(asked),
            "pairs": [list(pair) for pair in pairs],
            "channel": "private",
            "prompts": {agent: self._question(fact.kind, fact.entity) for agent, fact in asked.items()},
        }
        number = self._add(phase)
        for pair in pairs:
            for agent, partner in (pair, pair[::-1]):
                self._learned[partner].setdefault(asked[agent], Learned(number, "relay"))

    def _talk(self, name: str, tokens: int) -> None:
        self._all_at_once(name, {agent: self._filler_of(tokens) for agent in self._agents})

    def _filler_of(self, tokens: int) -> str:
        sentences: list[str] = []
        while not sentences or tokens > 12:
            sentences.append(filler_text(self._rng, 1))
            tokens -= count_tokens(sentences[-1])
        return " ".join(sentences)

    def _ask(self) -> list[Question]:
        rounds = [(f"ask-{number}", how) for number, how in enumerate(ASKED, 1)]
        asked = {agent: self._topics(agent) for agent in self._agents}
        questions = []
        for phase, how in rounds:
            prompts = {}
            for agent in self._agents:
                kind, entity, learned, expected = asked[agent][how].pop(0)
                questions.append(Question(phase, agent, kind, entity, learned, expected))
                prompts[agent] = self._question(kind, entity)
            self._all_at_once(phase, prompts)
        return questions

    def _topics(self, agent: str) -> dict[str, list[tuple[Kind, str, str, str]]]:
        known = self._rng.sample(list(self._learned[agent].items()), len(self._learned[agent]))
        ways = {learned.how: fact for fact, learned in known}
        first = sorted(self._rng.sample(list(ways.values()), len(ways)), key=lambda fact: fact != ways.get("whisper"))
        rest = [fact for fact, _ in known if fact not in first]
        entities = {fact.entity for fact in self._told}
        others = [(fact.kind, fact.entity) for fact in self._told if fact not in self._learned[agent]]
        never = self._rng.sample([each for each in ENTITIES if each[1] not in entities], len(ASKED))
        withheld = _unknown("withheld", self._rng.sample(others, len(others)))
        return {
            "known": [(f.kind, f.entity, self._learned[agent][f].how, f.answer) for f in (*first, *rest)],
            "withheld": [*withheld, *_unknown("never told", never[1:])],
            "never told": _unknown("never told", never[:1]),
        }

    def _question(self, kind: Kind, entity: str) -> str:
        return self._rng.choice(kind.questions).format(e=entity)

    def _all_at_once(self, name: str, prompts: dict[str, str]) -> None:
        phase = {
            "name": name,
            "topology": "all_at_once",
            "agents": list(self._agents),
            "listeners": [JUDGE],
            "channel": "private",
            "to": {agent: [JUDGE] for agent in self._agents},
            "prompts": prompts,
            "listening": "silent",
        }
        self._add(phase)

    def _add(self, phase: dict[str, Any]) -> int:
        self._phases.append({name: value for name, value in phase.items() if value or name == "name"})
        return len(self._phases) - 1


def _facts(rng: random.Random) -> Iterator[Fact]:
    values: set[str] = set()
    for kind, entity in rng.sample(ENTITIES, len(ENTITIES)):
        held_out = kind.values[-kind.entities.index(entity) % HELD_OUT_STRIDE :: HELD_OUT_STRIDE]
        free = [value for value in held_out if value not in values]
        if free:
            value = rng.choice(free)
            values.add(value)
            yield Fact(kind, entity, value)


def _unknown(how: str, topics: Sequence[tuple[Kind, str]]) -> list[tuple[Kind, str, str, str]]:
    return [(kind, entity, how, unknown_answer(kind, entity)) for kind, entity in topics]


def _shifted(circle: Sequence[str]) -> list[str]:
    return [*circle[1:], circle[0]]
