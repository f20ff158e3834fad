"""Agents at work: many short turns that come and go, through the stack and by mlx_lm.server.

    agentmem bench work --model smollm2 --agents 1 8
    agentmem bench work --model llama-3.1-8b --agents 8 32 --servers agentmem

Agents take turn after turn without a pause; measured from their second turns on, by one client over OpenAI's API.
"hot": agents are in memory; "warm": all processes were killed by SIGKILL. A "gap" is the time between two pieces of
text. A geometry is a model of random 4-bit weights; its text is not made into the same tokens again, so servers that do
not keep tokens compute answers once more.
"""

import argparse
import asyncio
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import options, random_models, results
from benchmarks.live import scratch
from benchmarks.models import REAL, Weights, weights
from benchmarks.peers.scenarios import Chat, TurnSizes
from benchmarks.peers.servers import Agentmem, MlxLm, Room, Server
from benchmarks.prompts import Prompts
from benchmarks.random_models import GEOMETRIES
from benchmarks.tables import Table
from gateway.cli.bench.completions import Answer

SERVERS = {kind.name: kind for kind in (Agentmem, MlxLm)}
WAYS = ("hot", "warm")
_WARM_UP = "warm-up"
_Tell: TypeAlias = Callable[[int, str, dict[str, Any]], None]
_GROUPS = 3


class Agent(Chat):
    def __init__(self, server: Server, words: Prompts, sizes: TurnSizes, name: str) -> None:
        super().__init__(server, words, sizes, name, name)

    async def turn(self) -> Answer:
        """Raises RuntimeError."""
        answer = await self.say()
        if problem := answer.problem(self._sizes.generated):
            raise RuntimeError(f"{self._server.name}, {self.name}: {problem}; its log is {self._server.log}")
        return answer

    async def works(self) -> list[Answer]:
        return [await self.turn() for _ in range(self._sizes.turns - 1)]


async def at_work(server: Server, words: Prompts, sizes: TurnSizes, agents: int, way: str) -> dict[str, Any]:
    count = _GROUPS if way == "hot" else 1
    groups = [await _group_at_work(server, words, sizes, agents, way, group) for group in range(count)]
    turns = list(itertools.chain.from_iterable(group["turns"] for group in groups))
    return {"seconds": sum(group["seconds"] for group in groups), "turns": turns}


async def _group_at_work(
    server: Server, words: Prompts, sizes: TurnSizes, agents: int, way: str, group: int
) -> dict[str, Any]:
    workers = [Agent(server, words, sizes, f"{agents} {way} {group} {number}") for number in range(agents)]
    await asyncio.gather(*(agent.turn() for agent in workers))
    if way == "warm":
        if isinstance(server, Agentmem):
            await server.settle([agent.name for agent in workers])
        await server.kill()
        await server.start()
    by_agent = await asyncio.gather(*(agent.works() for agent in workers))
    answers = list(itertools.chain.from_iterable(by_agent))
    began = min(answer.sent for answer in answers)
    return {
        "seconds": max(answer.sent + answer.seconds for answer in answers) - began,
        "turns": [
            [{**answer.sample(), "gaps": _gaps([at - answer.sent for at in answer.arrivals])} for answer in mine]
            for mine in by_agent
        ],
    }


def _gaps(arrivals: Sequence[float]) -> list[float]:
    return [round(later - earlier, 6) for earlier, later in itertools.pairwise(arrivals)]


def figures_of(sizes: TurnSizes, found: dict[str, Any]) -> dict[str, Any]:
    turns = list(itertools.chain.from_iterable(found["turns"]))
    gaps = list(itertools.chain.from_iterable(turn.pop("gaps") for turn in turns))
    first, counts = [turn["first"] for turn in turns], (50, 95, 99)
    reused = [(turn["cached"], turn["prompt"]) for turn in turns if turn.get("cached") is not None]
    return {
        "gaps": len(gaps),
        "tokens_per_second": len(turns) * sizes.generated / found["seconds"],
        "first": {str(percent): results.percentile(first, percent) for percent in counts},
        "gap": {str(percent): results.percentile(gaps, percent) for percent in counts},
        "from_memory": sum(cached for cached, _ in reused) / sum(prompt for _, prompt in reused) if reused else None,
        "samples": found,
    }


async def of_server(
    server: Server, words: Prompts, sizes: TurnSizes, agents: Sequence[int], ways: Sequence[str], tell: _Tell
) -> None:
    await server.start()
    try:
        warm_up = TurnSizes(sizes.context, sizes.new, sizes.generated, 3)
        for count in agents:
            await asyncio.gather(
                *(Agent(server, words, warm_up, f"{_WARM_UP} {count} {number}").works() for number in range(count))
            )
            for way in ways:
                found = await at_work(server, words, sizes, count, way)
                tell(count, f"{server.name}, {way}", figures_of(sizes, found))
    finally:
        await server.stop()


def tables(figures: dict[str, Any]) -> list[Table]:
    sizes = figures["sizes"]
    columns = ("", "tokens/s", "first token p50", "p95", "p99", "gap p50", "p99", "from memory")
    note = (
        f"Contexts of {sizes['context']} tokens, {sizes['turns'] - 1} turns of {sizes['new']} new tokens and "
        f"{sizes['generated']} generated ones."
    )
    return [
        Table(f"{agents} agents at work", columns, [_row(name, each) for name, each in by_way.items()], note)
        for agents, by_way in figures["measured"].items()
    ]


def _row(name: str, each: dict[str, Any]) -> tuple[str, ...]:
    rate, memory = each["tokens_per_second"], each["from_memory"]
    times = [each["first"][percent] for percent in ("50", "95", "99")] + [each["gap"][at] for at in ("50", "99")]
    shown = (name, f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}")
    return (*shown, *(f"{time * 1000:.0f} ms" for time in times), "" if memory is None else f"{memory:.1%}")


def given_weights(model: str, root: Path) -> Weights:
    """Raises SystemExit and Unavailable."""
    if model not in GEOMETRIES:
        return weights(model, None, root)
    # Random weights do not say which bits are good.
    os.environ |= {"AGENTMEM_WORKER_KV_BITS": "4", "AGENTMEM_WORKER_QUALITY_CHECK": "false"}
    random_models.write(model, root / model)
    return weights(f"{model}={root / model}", None, root)


async def main(arguments: argparse.Namespace) -> int:
    sizes = TurnSizes(arguments.context, arguments.new, arguments.generated, arguments.turns)
    measured: dict[str, dict[str, Any]] = {}
    with scratch() as root:
        given = given_weights(arguments.model, root)
        words = Prompts(given.directory)
        room = Room(arguments.threads, max(arguments.agents))
        output = arguments.output or f"work-{given.name}-{results.backend()}"
        figures = {"backend": results.backend(), "sizes": asdict(sizes), "measured": measured}

        def tell(agents: int, name: str, found: dict[str, Any]) -> None:
            measured.setdefault(str(agents), {})[name] = found
            results.write(output, figures)
            print(f"{agents} agents, {name}: {found['tokens_per_second']:.1f} tokens/s", flush=True)

        for name in dict.fromkeys(arguments.servers):
            server = SERVERS[name](root / name, given, room)
            await of_server(server, words, sizes, arguments.agents, arguments.ways, tell)
    return results.conclude(output, figures, tables(figures))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "work-MODEL-BACKEND")
    named = f"demo, {', '.join(REAL)}, NAME=DIRECTORY of a model, or a geometry: {', '.join(GEOMETRIES)}"
    found.add_argument("--model", default=REAL[0], help=named)
    found.add_argument("--servers", nargs="+", choices=[*SERVERS], default=[*SERVERS], help="in this order")
    found.add_argument("--agents", type=options.at_least(1), nargs="+", default=[1, 8])
    found.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="of agents that servers know")
    found.add_argument("--turns", type=options.at_least(2), default=6, help="of each agent, the first included")
    found.add_argument("--context", type=options.at_least(1), default=2000, help="tokens that an agent knows at first")
    found.add_argument("--new", type=options.at_least(1), default=60, help="tokens of each message")
    found.add_argument("--generated", type=options.at_least(2), default=100, help="tokens of each answer")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found.add_argument("--threads", type=options.at_least(1), default=cores, help="of each server (default: all cores)")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
