"""What looking ahead is worth, where more agents take turns than the pool holds.

    agentmem bench lookahead [--agents 8] [--holds 4] [--runs 2]

Schedules of a workflow on the demo model, by gRPC at the worker, each played three ways: by the last use alone; with
SetTurnHints for the whole cast while each agent speaks; and with PrefetchAgent of the next speaker besides, both from
the speaker's first word on. Agents are forks of agents computed once, of one length in blocks, and the pool holds so
many of them. What counts is every turn but an agent's first: where its
KV was when the turn began, bytes that were read for it, and the time to its first token. For reference the same
schedule by two rules on paper: least recently used, and Belady's, who knows what comes.

The machine may have other work: compare ways, which are played in turn, and not seconds.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.v1 import types_pb2
from benchmarks import options, results
from benchmarks.models import DEMO
from benchmarks.prompts import token_ids
from benchmarks.services import Services, serving
from benchmarks.tables import Table
from benchmarks.turns import Turn

MODEL = "demo"
FIRST_TOKENS, BLOCKS = 1290, 6
"""An agent's first prompt, and the blocks that it takes from then on."""
TOKEN_BYTES = 960
"""The demo model's KV in float32."""
WAYS = ("last use", "hints", "hints and prefetch")

Schedule = Sequence[str]


@dataclass(frozen=True)
class Pattern:
    """Who speaks when, and how many tokens who says."""

    schedule: Schedule
    says: dict[str, int]


def round_robin(agents: int, rounds: int) -> Pattern:
    """One after the other."""
    cast = [f"agent {number}" for number in range(agents)]
    return Pattern(cast * rounds, dict.fromkeys(cast, 8))


def hub(agents: int, rounds: int) -> Pattern:
    """One speaks after each of the others, and little."""
    spokes = [f"spoke {number}" for number in range(agents - 1)]
    says = dict.fromkeys(spokes, 8) | {"hub": 4}
    return Pattern([each for spoke in spokes for each in (spoke, "hub")] * rounds, says)


def distances(schedule: Schedule, turn: int) -> dict[str, int | None]:
    """Of everybody in the schedule, how many turns come between this one and theirs; None: none comes."""
    rest = list(schedule[turn + 1 :])
    return {name: rest.index(name) if name in rest else None for name in dict.fromkeys(schedule)}


def farthest_first(schedule: Schedule, turn: int, pool: Sequence[str]) -> str:
    """Who goes by Belady's rule."""
    steps = distances(schedule, turn)
    return max(pool, key=lambda name: len(schedule) if (distance := steps[name]) is None else distance)


def least_recently_used(_schedule: Schedule, _turn: int, pool: Sequence[str]) -> str:
    """Who goes by the last use. `pool` is in its order."""
    return pool[0]


def hits(schedule: Schedule, holds: int, goes: Callable[[Schedule, int, Sequence[str]], str]) -> list[bool]:
    """Of every turn but an agent's first, whether the agent was in a pool that holds so many."""
    pool: list[str] = []
    found = []
    for turn, name in enumerate(schedule):
        if name in schedule[:turn]:
            found.append(name in pool)
        pool = [each for each in pool if each != name]
        while len(pool) >= holds:
            pool.remove(goes(schedule, turn, pool))
        pool.append(name)
    return found


class Play:
    """Schedules on a worker whose pool holds some agents of them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def begin(self, agents: int) -> None:
        """Make agents whose forks play; computed once, on disk, and not in the pool."""
        for number in range(agents):
            ids = token_ids(FIRST_TOKENS, _origin(number))
            await self._services.turn(MODEL, _origin(number), 1, token_ids=types_pb2.TokenIds(ids=ids))
            await self._services.evict(MODEL, _origin(number))

    async def play(self, pattern: Pattern, way: str, name: str) -> dict[str, Any]:
        """One schedule, one way, by agents that nobody knows; what its turns were like."""
        cast = {each: f"{each}, {way}, {name}" for each in pattern.says}
        schedule = [cast[each] for each in pattern.schedule]
        for number, agent in enumerate(cast.values()):
            await self._services.fork(MODEL, _origin(number), agent)
        turns, prefetched = [], 0
        for turn, agent in enumerate(schedule):
            appended = types_pb2.Append(text=" the boat")
            says = pattern.says[pattern.schedule[turn]]
            spoke = asyncio.Event()
            speaking = asyncio.create_task(self._services.turn(MODEL, agent, says, spoke, append=appended))
            await spoke.wait()  # so that nobody's first word waits for the next one's memory
            prefetched += await self._look_ahead(schedule, turn, way)
            said = await speaking
            if agent in schedule[:turn]:
                turns.append(said)
        for agent in cast.values():
            await self._services.evict(MODEL, agent)
        if lost := [each for each in turns if each.reused < FIRST_TOKENS]:
            raise RuntimeError(f"{len(lost)} turns computed again what they had, such as {lost[0]}")
        return {
            "turns": len(turns),
            "tier": {tier: sum(_tier(each) == tier for each in turns) for tier in ("hot", "hot and warm", "warm")},
            "hot_tokens": sum(each.cached.get("hot", 0) for each in turns) / sum(each.reused for each in turns),
            "bytes_read": sum(each.load_bytes for each in turns) + prefetched,
            "first_token": [each.first for each in turns],
        }

    async def _look_ahead(self, schedule: Schedule, turn: int, way: str) -> int:
        """What a runner does while an agent speaks; bytes read, but for an agent's first turn."""
        if way == "last use" or turn + 1 == len(schedule):
            return 0
        await self._services.hint(MODEL, distances(schedule, turn))
        if way == "hints":
            return 0
        read = (await self._services.prefetch(MODEL, schedule[turn + 1])).bytes
        return read if schedule[turn + 1] in schedule[: turn + 1] else 0


_PAPER = {least_recently_used.__name__: "last use", farthest_first.__name__: "Belady"}


def _spread(seconds: Sequence[float]) -> str:
    first, middle, third = statistics.quantiles(seconds, n=4)
    return f"{middle * 1000:.0f} ({first * 1000:.0f}–{third * 1000:.0f}) ms"


def _origin(number: int) -> str:
    return f"origin {number}"


def _tier(turn: Turn) -> str:
    return " and ".join(turn.cached)


def merged(plays: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several plays of one schedule, one way."""
    turns = sum(each["turns"] for each in plays)
    return {
        "turns": turns,
        "tier": {tier: sum(each["tier"][tier] for each in plays) for tier in plays[0]["tier"]},
        "hot_turns": sum(each["tier"]["hot"] for each in plays) / turns,
        "hot_tokens": sum(each["hot_tokens"] * each["turns"] for each in plays) / turns,
        "bytes_read": sum(each["bytes_read"] for each in plays) // len(plays),
        "first_token": results.summary([sample for each in plays for sample in each["first_token"]]),
    }


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write."""
    blocks = arguments.holds * BLOCKS + 1  # and what the speaker may need besides what it has
    patterns = {
        "round robin": round_robin(arguments.agents, arguments.rounds),
        "hub": hub(arguments.agents, arguments.hub_rounds),
    }
    plays: dict[tuple[str, str], list[dict[str, Any]]] = {}
    flags = ("--pool-bytes", str(blocks * BLOCK_TOKENS * TOKEN_BYTES), "--no-quality-check")
    async with serving([f"{MODEL}={DEMO}"], *flags) as services:
        if (found := (await services.describe(MODEL)).kv_bytes_per_token) != TOKEN_BYTES:
            raise RuntimeError(f"the model's KV takes {found} bytes a token here, and the pool is for {TOKEN_BYTES}")
        play = Play(services)
        await play.begin(arguments.agents)
        await play.play(round_robin(2, 2), WAYS[-1], "warm-up")
        for run in range(arguments.runs):
            for name, pattern in patterns.items():
                for way in WAYS if run % 2 == 0 else reversed(WAYS):
                    plays.setdefault((name, way), []).append(await play.play(pattern, way, f"{name} {run}"))
    figures: dict[str, Any] = {"agents": arguments.agents, "holds": arguments.holds, "first_tokens": FIRST_TOKENS}
    for name, pattern in patterns.items():
        paper = {
            rule.__name__: sum(outcome := hits(pattern.schedule, arguments.holds, rule)) / len(outcome)
            for rule in (least_recently_used, farthest_first)
        }
        figures[name] = {"ways": {way: merged(plays[name, way]) for way in WAYS}, "on_paper": paper}
    results.conclude(arguments.output, figures, tables(figures))


def tables(figures: dict[str, Any]) -> list[Table]:
    """What turns found in the pool, by schedule and way; and by the rules on paper."""
    rows: list[tuple[str, ...]] = []
    for name, pattern in figures.items():
        if not isinstance(pattern, dict):
            continue
        base = pattern["ways"][WAYS[0]]["first_token"]["median"]
        for way, row in pattern["ways"].items():
            first = row["first_token"]
            hot = (f"{row['hot_turns']:.0%}", f"{row['hot_tokens']:.0%}")
            times = (_spread(first["samples"]), f"{first['median'] / base:.2f}")
            rows.append((f"{name}, {way}", str(row["turns"]), *hot, f"{row['bytes_read'] / 1e6:.1f}", *times))
        for rule, share in pattern["on_paper"].items():
            rows.append((f"{name}, on paper: {_PAPER[rule]}", "", f"{share:.0%}", "", "", "", ""))
    columns = ("", "turns", "wholly hot", "tokens hot", "MB read", "first token (quartiles)", "of last use")
    return [
        Table(f"{figures['agents']} agents, a pool for {figures['holds']}: turns after an agent's first", columns, rows)
    ]


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--holds", type=int, default=4, help="agents that the pool holds")
    parser.add_argument("--rounds", type=options.at_least(2), default=4, help="of the round robin")
    parser.add_argument("--hub-rounds", type=options.at_least(1), default=2, help="in which the hub hears everybody")
    parser.add_argument("--runs", type=options.at_least(1), default=2)
    parser.add_argument("--output", default="lookahead-demo-cpu", help="name of the file under benchmarks/results")
    sys.exit(asyncio.run(main(parser.parse_args())))
