"""Scenarios for every server, one sample at a time, with the server's own answers as history.

A figure is seconds, or tokens a second where its name ends so; None where a turn was wrong.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.servers import Server
from benchmarks.prompts import Prompts
from gateway.cli.bench.completions import Answer, Message

SPEED = "tokens/s"
PAUSE_SECONDS = 0.3
"""Seconds between samples, for work after an answer: agentmem writes files then."""


@dataclass(frozen=True)
class TurnSizes:
    """Tokens of a first context, of each message and each answer; `turns` include the first."""

    context: int
    new: int
    generated: int
    turns: int


@dataclass(frozen=True)
class Sizes(TurnSizes):
    agents: int
    rounds: int


class Sample:
    def __init__(self, words: Prompts) -> None:
        self._words = words
        self.figures: dict[str, list[float | None]] = {}
        self.problems: list[str] = []
        self.turns: list[dict[str, Any]] = []

    def check(self, answer: Answer, tokens: int) -> bool:
        """Return whether an answer is right, also by the tokens of its text."""
        problem = answer.problem(tokens)
        if not problem and (counted := len(self._words.ids_of(answer.text))) < tokens // 2:
            problem = f"its text is {counted} tokens, not {tokens}"
        self.turns.append({**answer.sample(), **({"problem": problem} if problem else {})})
        if problem:
            self.problems.append(problem)
        return not problem

    def add(self, name: str, value: float | None) -> None:
        """Add one value of a figure; None where its turn was wrong."""
        self.figures.setdefault(name, []).append(value)

    def first(self, name: str, answer: Answer, tokens: int) -> bool:
        good = self.check(answer, tokens)
        self.add(name, answer.first if good else None)
        return good

    def found(self) -> dict[str, Any]:
        return {"figures": self.figures, "problems": self.problems, "turns": self.turns}


class Chat:
    """A conversation whose client sends all of it each time; of the agent `name`, where one is given."""

    def __init__(self, server: Server, words: Prompts, sizes: TurnSizes, seed: str, name: str = "") -> None:
        self._server, self._words, self._sizes, self._seed, self.name = server, words, sizes, seed, name
        self.messages: list[Message] = [{"role": "system", "content": words.text(sizes.context, seed)}]

    async def say(self) -> Answer:
        text = self._words.text(self._sizes.new, f"{self._seed}, {len(self.messages)}")
        self.messages.append({"role": "user", "content": text})
        answer = await self._server.client.ask(self.messages, self._sizes.generated, agent=self.name)
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer


Scenario = Callable[[Server, Prompts, Sizes, int], Awaitable[Sample]]


async def growing(server: Server, words: Prompts, sizes: Sizes, number: int) -> Sample:
    sample, chat = Sample(words), Chat(server, words, sizes, f"growing {number}")
    for turn in range(sizes.turns):
        answer = await chat.say()
        good = sample.first(f"turn {turn + 1}: first token", answer, sizes.generated)
        if turn == 0:
            sample.add(f"prompt of turn 1, {SPEED}", answer.prompt / answer.first if good else None)
        decoding = answer.arrivals[-1] - answer.arrivals[0] if len(answer.arrivals) > 1 else 0.0
        if turn in (0, sizes.turns - 1):
            speed = (sizes.generated - 1) / decoding if good and decoding else None
            sample.add(f"answer of turn {turn + 1}, {SPEED}", speed)
    return sample


async def restarted(server: Server, words: Prompts, sizes: Sizes, number: int) -> Sample:
    sample, chat = Sample(words), Chat(server, words, sizes, f"restarted {number}")
    sample.check(await chat.say(), sizes.generated)
    sample.first("the turn before: first token", await chat.say(), sizes.generated)
    await asyncio.sleep(PAUSE_SECONDS)
    await server.kill()
    ready = await server.start()
    answer = await chat.say()
    sample.add("ready again", ready)
    good = sample.first("the turn after: first token", answer, sizes.generated)
    sample.add("from the start of its process to that token", ready + answer.first if good else None)
    return sample


async def together(server: Server, words: Prompts, sizes: Sizes, number: int) -> Sample:
    """Let agents speak one after the other, and as many others at once."""
    sample = Sample(words)
    for way in ("in turn", "at once"):
        chats = [Chat(server, words, sizes, f"{way} {number}, {agent}") for agent in range(sizes.agents)]
        for turn in ("first turn", "next turn"):
            if way == "in turn":
                answers = [await chat.say() for chat in chats]
            else:
                answers = list(await asyncio.gather(*(chat.say() for chat in chats)))
            named = f"{way}, {turn}"
            good = all([sample.first(f"{named}: first token", answer, sizes.generated) for answer in answers])
            ended = max(answer.sent + answer.seconds for answer in answers)
            wall = ended - min(answer.sent for answer in answers)
            if way == "at once":
                last = max(answer.first for answer in answers)
                sample.add(f"{named}: the last agent's first token", last if good else None)
            sample.add(f"{named}: all, {SPEED}", sizes.agents * sizes.generated / wall if good else None)
            await asyncio.sleep(PAUSE_SECONDS)
    return sample


async def round_robin(server: Server, words: Prompts, sizes: Sizes, number: int) -> Sample:
    """Let more agents than memory holds speak, one after the other, round after round."""
    sample = Sample(words)
    chats = [Chat(server, words, sizes, f"round robin {number}, {agent}") for agent in range(sizes.agents)]
    for chat in chats:
        sample.check(await chat.say(), sizes.generated)
    for _ in range(sizes.rounds):
        for chat in chats:
            sample.first("next turn: first token", await chat.say(), sizes.generated)
    return sample


SCENARIOS: dict[str, Scenario] = {
    "growing": growing,
    "restart": restarted,
    "together": together,
    "round-robin": round_robin,
}
CROWDED = frozenset({"round-robin"})
"""Memory holds few agents in these."""
ONCE = frozenset({"together", "round-robin"})
"""One sample of these has a value of each agent."""
