"""The parts of a run, and how much of each fits into its share of the time. Pure."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

OURS, THEIRS = "agentmem", "mlx-lm"
LENGTHS: Final = (1024, 4096, 16384)
TOGETHER: Final = (1, 4, 8)
"""Agents that answer at once."""

NEW: Final = 32
"""Tokens of a next turn."""

FIRST: Final = 4
"""Tokens of an answer whose beginning is measured."""

CONTEXT: Final = 256
"""Tokens before an answer whose speed is measured."""

PAUSE_SECONDS, PACED_TURNS = 10.0, 3

_GROWTH: Final = 1.3
"""A token of a four times longer prompt costs so many times as much."""

_TURN_SECONDS: Final = 0.5
"""For what a short turn takes besides its prompt."""

_MINUTES_FROM: Final = 90.0
_MOST_SAMPLES: Final = 3
_ANSWER, _SHORTEST, _ANSWER_SHARE = 128, 16, 0.1


class Step(NamedTuple):
    """`weight`: its share of the time, against those of other steps."""

    part: str
    server: str
    round: int
    weight: float


def steps() -> list[Step]:
    """Return the steps; only one server runs at a time, since a machine may hold the model only once."""
    found = [Step("doctor", "", 1, 1)]
    for number, weights in ((1, (1.0, 10.0, 3.0, 4.0)), (2, (1.0, 5.0, 2.0, 3.0))):
        for server in (OURS, THEIRS):
            start, first, answers, work = weights
            found.append(Step("start", server, number, start))
            if server == OURS and number == 1:
                found.append(Step("model", server, number, 2))
            found += [Step("first tokens", server, number, first), Step("answers", server, number, answers)]
            found.append(Step("work", server, number, work))
            if number == 1:
                found.append(Step("paced", server, number, 3))
    return found


class Budget:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self.ends = clock, clock() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self.ends - self._clock())

    def share(self, weight: float, later: float) -> float:
        """Return a step's part of what is left, where later ones weigh so much."""
        return self.left * weight / (weight + later)


@dataclass
class Pace:
    """Tokens per second of a server: of prompts, of one agent's answer, and of several at once."""

    prompt: float
    answer: float
    together: dict[int, float] = field(default_factory=dict)

    def first_seconds(self, tokens: int) -> float:
        """Return what an agent's turns of one sample take, by shorter ones."""
        return _GROWTH * tokens / self.prompt + 3 * _TURN_SECONDS

    def answers_seconds(self, agents: int, tokens: int) -> float:
        return agents * (CONTEXT / self.prompt + tokens / self.at_once(agents)) + _TURN_SECONDS

    def at_once(self, agents: int) -> float:
        """Return the tokens per second of so many agents together; unless measured, those of one."""
        return self.together.get(agents, self.answer)


class Work(NamedTuple):
    agents: int
    context: int
    turns: int
    generated: int
    new: int = 60

    def seconds(self, pace: Pace) -> float:
        prompts = self.agents * (self.context + self.turns * self.new)
        return prompts / pace.prompt + self.agents * self.turns * self.generated / pace.at_once(self.agents)

    @property
    def tokens(self) -> int:
        return self.context + self.turns * (self.new + self.generated + NEW)


WORKS: Final = (
    *(Work(8, 2000, 6, 100), Work(8, 1000, 5, 64), Work(8, 500, 4, 32)),
    *(Work(4, 500, 4, 32), Work(4, 250, 3, 16), Work(2, 250, 3, 16)),
)


def work_within(pace: Pace, seconds: float, context: int) -> Work | None:
    """Return the largest that takes at most so long."""
    return next((each for each in WORKS if each.tokens <= context and each.seconds(pace) <= seconds), None)


def answer_tokens(pace: Pace, share: float) -> int:
    return max(_SHORTEST, min(_ANSWER, round(pace.answer * share * _ANSWER_SHARE)))


def samples(cost: float, left: float) -> int:
    return max(1, min(_MOST_SAMPLES, int(left / 2 / cost)))


def too_long(seconds: float, left: float) -> str:
    """Return "would take about 3 min, of which 40 s are left"."""
    return f"would take about {_words(seconds)}, of which {_words(max(0.0, left))} are left"


def _words(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= _MINUTES_FROM else f"{seconds:.0f} s"
