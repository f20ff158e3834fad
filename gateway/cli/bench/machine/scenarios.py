"""The turns of each part: the same messages to both servers, by one client.

Each takes a server, what is known so far, its share of the time in seconds, and what to fill: figures until an error or
Ctrl-C stay.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentmem.errors import AgentmemError
from gateway.cli.bench.completions import Answer, Message
from gateway.cli.bench.machine.children import Failed
from gateway.cli.bench.machine.plan import (
    CONTEXT,
    FIRST,
    LENGTHS,
    NEW,
    PACED_TURNS,
    PAUSE_SECONDS,
    TOGETHER,
    Pace,
    Work,
    answer_tokens,
    samples,
    too_long,
    work_within,
)
from gateway.cli.bench.machine.servers import Agentmem, Server, Tell
from gateway.cli.bench.measuring import WORDS, evicted

Found = dict[str, Any]

_PROBES: Final = (64, 256)
_PROBE_ANSWER: Final = 16
_LEAST_SECONDS: Final = 120.0
"""A server's first figure of a kind may take so long, whatever its share is: a page without any says nothing."""

_TOLERANCE: Final = 3.0
"""How many shares of the time a server may take for what the other did in one."""


class Skipped(Exception):
    """Says why a part was not tried."""


@dataclass
class Known:
    """Things that parts tell each other. `words`: of a token; `kept`: a chat for after a restart, by server."""

    tell: Tell
    words: float = 0.75
    context: int = 0
    paces: dict[str, Pace] = field(default_factory=dict)
    answer: int = 0
    work: Work | None = None
    kept: dict[str, "Chat"] = field(default_factory=dict)
    chats: int = 0

    def text(self, tokens: int, seed: str) -> str:
        return " ".join(random.Random(seed).choices(WORDS, k=max(1, round(tokens * self.words))))

    def chat(self, server: Server) -> "Chat":
        self.chats += 1
        return Chat(server, f"bench-{self.chats}", self)


class Chat:
    """A conversation of an agent, of which the client sends all each time."""

    def __init__(self, server: Server, name: str, known: Known) -> None:
        self.server, self.name, self.tokens, self._known = server, name, 0, known
        self._messages: list[Message] = []

    async def say(self, tokens: int, generated: int) -> Answer:
        """Raises Failed."""
        text = self._known.text(tokens, f"{self.name}, {len(self._messages)}")
        messages = [*self._messages, {"role": "user", "content": text}]
        answer = await self.server.client.ask(messages, generated, agent=self.name)
        if answer.error or not answer.done or not answer.generated:
            self.server.check()
            raise Failed(f"{self.server.name} does not answer: {answer.error or answer.problem(generated)}")
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        self.tokens = answer.prompt + answer.generated
        return answer


def speed(answers: Sequence[Answer]) -> float | None:
    """Return the tokens per second of answers that came at once; None where they came in one piece."""
    arrivals = [at for answer in answers for at in answer.arrivals]
    seconds = max(arrivals) - min(arrivals) if arrivals else 0.0
    return sum(answer.generated - 1 for answer in answers) / seconds if seconds else None


async def probe(server: Server, known: Known) -> None:
    """Find out roughly how fast a server is, and, first of all, how many words a token has."""
    turns = []
    for words in _PROBES:
        known.tell(f"how fast {server.name} is")
        turns.append(await known.chat(server).say(round(words / known.words), _PROBE_ANSWER))
    short, long = turns
    if not known.paces and long.prompt > short.prompt:
        known.words = (_PROBES[1] - _PROBES[0]) / (long.prompt - short.prompt)
    answer = speed([long]) or long.generated / long.seconds
    known.paces[server.name] = Pace(long.prompt / long.first, answer)


async def start(server: Server, known: Known, _: float, found: Found) -> None:
    times = await server.start(known.tell)
    began = times.pop("began")
    found |= {**times, "ready": times["ready"] - began}
    chat = known.kept.get(server.name) or known.chat(server)
    answer = await chat.say(NEW, FIRST)
    first = answer.sent + answer.first
    found |= {"first_answer": first - began, "of_it_the_turn": answer.first}
    if server.name in known.kept:
        found |= {"prompt": answer.prompt, **_reused(answer)}
    else:
        await probe(server, known)


async def first_tokens(server: Server, known: Known, share: float, found: Found) -> None:
    """Measure a new prompt, and the agent's next turns: from disk where the server has one, and from memory."""
    ends, pace = time.monotonic() + share, known.paces[server.name]
    for length in LENGTHS:
        left, cost = ends - time.monotonic(), pace.first_seconds(length)
        left = left if server.name in known.kept else max(left, _LEAST_SECONDS)
        if length + 8 * (NEW + FIRST) > known.context:
            found[str(length)] = {"skipped": f"the context has {known.context:,} tokens"}
        elif cost > left:
            found[str(length)] = {"skipped": too_long(cost, left)}
        else:
            found[str(length)] = {"samples": [], "notes": []}
            count = samples(cost, ends - time.monotonic())
            for number in range(count):
                known.tell(f"{length:,} tokens, {number + 1} of {count}")
                await _first_tokens_of(server, known, length, found[str(length)])
            cold = min(found[str(length)]["samples"], key=lambda each: each["cold"])
            pace.prompt = cold["prompt"] / cold["cold"]


async def _first_tokens_of(server: Server, known: Known, length: int, found: dict[str, Any]) -> None:
    chat = known.chat(server)
    cold = await chat.say(length, FIRST)
    sample: dict[str, Any] = {"prompt": cold.prompt, "cold": cold.first, "seconds": cold.seconds}
    found["samples"].append(sample)
    if isinstance(server, Agentmem):
        try:
            async with server.asked() as agentmem:
                await evicted(agentmem.agent(chat.name, model=server.subject.name))
        except AgentmemError as error:
            found["notes"].append(error.message)
        else:
            warm = await chat.say(NEW, FIRST)
            sample |= {"warm": warm.first, "warm_reused": _reused(warm)}
    hot = await chat.say(NEW, FIRST)
    sample |= {"hot": hot.first, "hot_reused": _reused(hot)}
    if length <= LENGTHS[1]:
        known.kept[server.name] = chat


def _reused(answer: Answer) -> dict[str, Any]:
    return {"reused": answer.cached, "of": answer.prompt, "tiers": dict(answer.tiers)}


async def answers(server: Server, known: Known, share: float, found: Found) -> None:
    """Measure agents that answer at once; both servers give answers of as many tokens."""
    ends, pace = time.monotonic() + share, known.paces[server.name]
    known.answer = known.answer or answer_tokens(pace, share)
    for agents in TOGETHER:
        cost, left = pace.answers_seconds(agents, known.answer), _TOLERANCE * (ends - time.monotonic())
        left = left if pace.together else max(left, _LEAST_SECONDS)
        if cost > left:
            found[str(agents)] = {"skipped": too_long(cost, left)}
            continue
        known.tell(f"{agents} at once")
        chats = [known.chat(server) for _ in range(agents)]
        await asyncio.gather(*(chat.say(CONTEXT, FIRST) for chat in chats))
        given = await asyncio.gather(*(chat.say(NEW, known.answer) for chat in chats))
        found[str(agents)] = {"tokens_per_second": speed(given), "tokens": known.answer}
        pace.together[agents] = speed(given) or pace.at_once(agents)


async def work(server: Server, known: Known, share: float, found: Found) -> None:
    """Let agents take turn after turn without a pause; measured from their second turns on."""
    pace = known.paces[server.name]
    known.work = plan = known.work or work_within(pace, share, known.context)
    if plan is None:
        raise Skipped("this machine is too slow for several agents in so little time")
    if (cost := plan.seconds(pace)) > _TOLERANCE * share:
        raise Skipped(too_long(cost, _TOLERANCE * share))
    known.tell(f"{plan.agents} agents")
    chats = [known.chat(server) for _ in range(plan.agents)]
    await asyncio.gather(*(chat.say(plan.context, FIRST) for chat in chats))
    given: list[Answer] = []

    async def works(chat: Chat) -> None:
        for _ in range(plan.turns):
            given.append(await chat.say(plan.new, plan.generated))
            known.tell(f"{plan.agents} agents, turn {len(given)} of {plan.agents * plan.turns}")

    began = time.monotonic()
    await asyncio.gather(*map(works, chats))
    seconds, firsts = time.monotonic() - began, sorted(answer.first for answer in given)
    reused = [answer.cached or 0 for answer in given]
    found |= {
        **plan._asdict(),
        "tokens_per_second": sum(answer.generated for answer in given) / seconds,
        "first_p50": statistics.median(firsts),
        "first_p95": statistics.quantiles(firsts, n=20, method="inclusive")[-1],
        "reused_share": sum(reused) / sum(answer.prompt for answer in given),
    }


async def paced(server: Server, known: Known, share: float, found: Found) -> None:
    """Measure turns without a pause and after pauses, in which a device may clock down. Each is another agent's, since
    who goes on repeats itself, and is then guessed.
    """
    pace = known.paces[server.name]
    tokens = known.answer or answer_tokens(pace, share)
    cost = PACED_TURNS * (PAUSE_SECONDS + 2 * pace.answers_seconds(1, tokens))
    if cost > _TOLERANCE * share:
        raise Skipped(too_long(cost, _TOLERANCE * share))
    found |= {"pause_seconds": PAUSE_SECONDS, "tokens": tokens}
    for name, pause in (("back_to_back", 0.0), ("paced", PAUSE_SECONDS)):
        found[name] = {"tokens_per_second": [], "first": []}
        for number in range(PACED_TURNS):
            known.tell(f"turns {f'{pause:g} s apart' if pause else 'without a pause'}, {number + 1} of {PACED_TURNS}")
            await asyncio.sleep(pause)
            turn = await known.chat(server).say(CONTEXT, tokens)
            found[name]["tokens_per_second"].append(speed([turn]))
            found[name]["first"].append(turn.first)
