"""Measures a model through its gateway, with agents that are deleted afterwards."""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from agentmem import Answer, AsyncAgent, AsyncClient, Model, Recalled
from agentmem.errors import FailedPrecondition

SAMPLES: Final = 3
TOGETHER: Final = 4
"""Agents that answer at once."""

_LENGTHS: Final = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000)
_COLD_SECONDS, _DECODE_SECONDS = 5.0, 2.0
"""For a cold turn, and for one agent's answer."""
_PROBE_WORDS, _PROBE_ANSWER, _NEW_WORDS = 64, 8, 50
_SHORTEST, _LONGEST = 8, 128
"""Tokens of an answer."""
_DELETE_AFTER: Final = 3600
_WRITTEN_SECONDS, _WRITTEN_INTERVAL, _SETTLED_INTERVAL = 30.0, 0.2, 0.5
WORDS: Final = (
    *("the", "boat", "is", "green", "and", "key", "in", "cellar", "by", "sea", "who", "told", "you", "that"),
    *("remember", "colour", "of", "house", "red", "nobody", "knows"),
)
_TIERS: Final = {"cold": set[str](), "warm": {"warm"}, "hot": {"hot"}}


@dataclass(frozen=True)
class Turn:
    """`began`, `first` (token) and `ended` are times."""

    answer: Answer
    began: float
    first: float
    ended: float

    @property
    def ttft(self) -> float:
        return self.first - self.began

    @property
    def generated(self) -> int:
        """Tokens after the first."""
        return self.answer.usage.completion_tokens - 1


@dataclass
class Measured:
    """Seconds by temperature, tokens per second by agents at once; `tokens` of an agent before its warm turn."""

    model: Model
    tokens: int = 0
    ttft: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _TIERS})
    speed: dict[int, list[float]] = field(default_factory=lambda: {1: [], TOGETHER: []})


@dataclass(frozen=True)
class Plan:
    """Words of a cold turn, tokens of an answer."""

    words: int
    answer: int


def planned(probe: Turn, context_length: int) -> Plan:
    """Return what takes seconds where a short turn was so fast; at most half of the context."""
    prompt = probe.answer.usage.prompt_tokens
    most = min(_COLD_SECONDS * prompt / probe.ttft, context_length / 2)
    tokens = max((each for each in _LENGTHS if each <= most), default=_LENGTHS[0])
    speed = probe.generated / (probe.ended - probe.first)
    answer = min(max(round(speed * _DECODE_SECONDS), _SHORTEST), _LONGEST)
    return Plan(round(tokens * _PROBE_WORDS / prompt), answer)


async def measure(client: AsyncClient, name: str, report: Callable[[str], object]) -> Measured:
    """Raises AgentmemError."""
    measured = Measured(await _settled(client, name, report))
    async with _Agents(client, measured.model.name).open() as agents:
        report("a short turn")
        probes = [await agents.take(await agents.new(), _PROBE_WORDS, _PROBE_ANSWER) for _ in range(2)]
        plan = planned(min(probes, key=lambda turn: turn.ttft), measured.model.context_length)
        for number in range(1, SAMPLES + 1):
            report(f"first tokens, {number} of {SAMPLES}")
            agent = await _first_tokens(agents, plan, measured)
        several = [agent, *[await agents.fork(agent) for _ in range(TOGETHER - 1)]]
        for number in range(1, SAMPLES + 1):
            for together in measured.speed:
                report(f"tokens/s of {together} at once, {number} of {SAMPLES}")
                turns = await asyncio.gather(*(agents.take(each, 1, plan.answer) for each in several[:together]))
                seconds = max(turn.ended for turn in turns) - min(turn.first for turn in turns)
                measured.speed[together].append(sum(turn.generated for turn in turns) / seconds)
    return measured


async def _settled(client: AsyncClient, name: str, report: Callable[[str], object]) -> Model:
    """Wait until a new model is measured: before, it is slower, and its KV does not stay."""
    is_new = False
    while True:
        model = await client.models.get(name)
        is_new |= model.raw.unmeasured
        settled = ("loaded", "failed") if is_new else ("loaded", "failed", "registered")  # it is loaded again
        if model.state in settled and not model.raw.unmeasured:
            return model
        report("waiting until this new model is measured, once; that takes minutes on a CPU" if is_new else "its load")
        await asyncio.sleep(_SETTLED_INTERVAL)


async def _first_tokens(agents: "_Agents", plan: Plan, measured: Measured) -> AsyncAgent:
    agent = await agents.new()
    for temperature, tiers in _TIERS.items():
        if temperature == "warm":
            measured.tokens = await evicted(agent)
        turn = await agents.take(agent, plan.words if temperature == "cold" else _NEW_WORDS, 1)
        if (found := turn.answer.memory.tiers.keys()) != tiers:
            raise FailedPrecondition(
                f"a {temperature} turn took its memory from {', '.join(found) or 'nowhere'}, and measures nothing; "
                "try again while nobody else uses this server"
            )
        measured.ttft[temperature].append(turn.ttft)
    return agent


async def evicted(agent: AsyncAgent) -> int:
    """Evict the agent from memory once it is on disk; return its tokens."""
    try:
        async with asyncio.timeout(_WRITTEN_SECONDS):
            while (info := await agent.info()).warm_tokens < info.tokens:  # noqa: ASYNC110 - the store sends no event
                await asyncio.sleep(_WRITTEN_INTERVAL)
    except TimeoutError:
        raise FailedPrecondition("the agent's KV does not reach the disk; `agentmem doctor` says more") from None
    await agent.evict()
    return info.tokens


class _Agents:
    def __init__(self, client: AsyncClient, model: str) -> None:
        self._client, self._model = client, model
        self._run = f"bench-{secrets.token_hex(4)}"
        self._made: list[AsyncAgent] = []
        self._random = random.Random(self._run)

    @asynccontextmanager
    async def open(self) -> "AsyncIterator[_Agents]":
        try:
            yield self
        finally:
            for agent in self._made:
                await agent.delete(missing_ok=True)

    async def new(self) -> AsyncAgent:
        agent = self._client.agent(self._name(), model=self._model, delete_after=_DELETE_AFTER)
        self._made.append(agent)
        return agent

    async def fork(self, agent: AsyncAgent) -> AsyncAgent:
        self._made.append(await agent.fork(self._name(), delete_after=_DELETE_AFTER))
        return self._made[-1]

    def _name(self) -> str:
        return f"{self._run}-{len(self._made) + 1}"

    async def take(self, agent: AsyncAgent, words: int, max_tokens: int) -> Turn:
        """Take a turn with new text."""
        text = " ".join(self._random.choices(WORDS, k=words))
        began, first = time.monotonic(), 0.0
        async with agent.stream(text, max_tokens=max_tokens, temperature=0, ignore_eos=True) as stream:
            async for event in stream.events():
                if not first and not isinstance(event, Recalled):
                    first = time.monotonic()
        ended = time.monotonic()
        return Turn(stream.answer, began, first or ended, ended)
