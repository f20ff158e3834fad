"""Scores of a run: recall, leaks and work. Pure."""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from benchmarks.results import percentile
from benchmarks.working_memory.scenarios import Question, Scenario

_WORD = re.compile(r"[A-Za-z]+|\d+")


@dataclass(frozen=True)
class Work:
    """A turn, a note, or listening in silence. Seconds are the worker's."""

    kind: Literal["turn", "note", "silent"]
    phase: str
    agent: str
    text: str
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    seconds_to_first_token: float


@dataclass
class Performance:
    works: list[Work] = field(default_factory=list)
    seconds: float = 0.0
    notices: dict[str, Any] = field(default_factory=dict)
    """Further figures."""


@dataclass(frozen=True)
class Miss:
    """An answer that is not the expected one; `said` is None where there was none."""

    phase: str
    agent: str
    how: str
    expected: str
    said: str | None


@dataclass(frozen=True)
class Leak:
    phase: str
    agent: str
    value: str
    said: str


def misses(scenario: Scenario, performance: Performance) -> list[Miss]:
    answers = {(work.phase, work.agent): work.text.strip() for work in performance.works if work.kind == "turn"}
    return [
        Miss(question.phase, question.agent, question.how, question.expected, said)
        for question in scenario.questions
        if (said := answers.get((question.phase, question.agent))) != question.expected
    ]


def leaks(scenario: Scenario, performance: Performance) -> list[Leak]:
    """Return values in any text of an agent that it could not know by the phase's end."""
    return [
        Leak(work.phase, work.agent, value, work.text)
        for work in performance.works
        if work.phase in scenario.phases
        for value in _values_beyond(scenario, work)
    ]


def _values_beyond(scenario: Scenario, work: Work) -> Iterator[str]:
    words = {word.casefold() for word in _WORD.findall(work.text)}
    known = {fact.value for fact in scenario.could_know(work.agent, work.phase)}
    for fact in scenario.facts:
        if fact.value not in known and fact.value.casefold() in words:
            yield fact.value


def score(scenario: Scenario, performance: Performance) -> dict[str, Any]:
    missed, leaked = misses(scenario, performance), leaks(scenario, performance)
    works, waits = performance.works, [work for work in performance.works if work.kind != "silent"]
    first = [work.seconds_to_first_token for work in waits]
    return {
        "agents": len(scenario.agents),
        "recall": _shares(scenario.questions, missed, told=True),
        "never_told": _shares(scenario.questions, missed, told=False),
        "misses": [asdict(miss) for miss in missed],
        "leaks": [asdict(leak) for leak in leaked],
        "works": {kind: sum(work.kind == kind for work in works) for kind in ("turn", "note", "silent")},
        "prompt_tokens": sum(work.prompt_tokens for work in works),
        "prefill_tokens": sum(work.prompt_tokens - work.reused_tokens for work in works),
        "longest_turn": max((work.prompt_tokens for work in works if work.kind == "turn"), default=0),
        "generated_tokens": sum(work.generated_tokens for work in works),
        "seconds_to_first_token": {
            "median": statistics.median(first),
            "p90": percentile(first, 90),
            "samples": first,
        },
        "seconds": performance.seconds,
        **performance.notices,
    }


def differing(one: Performance, other: Performance) -> int:
    first, second = _texts(one), _texts(other)
    return sum(
        mine != yours
        for agent in first.keys() | second.keys()
        for mine, yours in zip_longest(first.get(agent, []), second.get(agent, []))
    )


def _shares(questions: Sequence[Question], missed: Sequence[Miss], *, told: bool) -> dict[str, Any]:
    wrong = {(miss.phase, miss.agent) for miss in missed}
    counts: dict[str, dict[str, int]] = {}
    for question in questions:
        if question.known == told:
            row = counts.setdefault(question.how, {"asked": 0, "right": 0})
            row["asked"] += 1
            row["right"] += (question.phase, question.agent) not in wrong
    asked, right = (sum(row[name] for row in counts.values()) for name in ("asked", "right"))
    return {"asked": asked, "right": right, "by": counts}


def _texts(performance: Performance) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for work in performance.works:
        if work.kind != "silent":
            found[work.agent].append(work.text)
    return found
