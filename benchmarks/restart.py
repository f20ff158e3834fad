"""From process start until all agents have answered, after a SIGKILL of everything; against computing them again.

    agentmem bench restart [--agents 5] [--length 4096] [--samples 3]

All agents are asked for one token at once as soon as the gateway lets calls through. The other way sends as long
prompts that nobody has seen, without a name. The two take turns; the first sample of each is not counted.
"""

import argparse
import asyncio
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console

from agentmem import layout
from benchmarks import live, options, results
from benchmarks.known_agents import KnownAgents
from benchmarks.live import LiveStack
from benchmarks.models import model_directory, model_name
from benchmarks.prompts import Prompts
from benchmarks.tables import Table, spread
from benchmarks.turns import Turn

KEPT, NOTHING = "agentmem", "computed anew"
WAYS = (KEPT, NOTHING)
MOMENTS = {
    "ready": "the gateway is ready",
    "first_answered": "the first agent's first token",
    "all_answered": "all {agents} agents have answered",
    "after_ready": "of that, after the gateway was ready",
}
_AGAIN_SECONDS, _PATIENCE_SECONDS = 0.02, 600.0


class Restarts:
    """Agents of so many tokens that outlive their stack. `root` holds what is kept."""

    def __init__(self, root: Path, model: str, agents: int, tokens: int, context: int, new: int) -> None:
        self._root, self._model, self._tokens, self._new = root, model, tokens, new
        self._environment = {"AGENTMEM_WORKER_CONTEXT_LENGTH": str(context)}
        self._agents = [f"restarted {number}" for number in range(agents)]
        self._prompts = Prompts(model_directory(model))
        self._stack: LiveStack | None = None

    async def create(self, stack: LiveStack | None = None) -> None:
        stack = self._stack = stack or await self._start(live.ready)
        for agent in self._agents:
            await KnownAgents(stack, self._prompts, self._new).remember(agent, self._tokens)

    async def sample(self, ways: Sequence[str]) -> dict[str, dict[str, Any]]:
        found = {way: await self._restart(way) for way in ways}
        self._tokens += self._new + 1 if KEPT in ways else 0
        return found

    async def stop(self) -> None:
        if self._stack is not None:
            await self._stack.close()

    async def _start(self, waiting: Callable[[Process, Path, str], Awaitable[LiveStack]]) -> LiveStack:
        process = await live.launch(self._root, self._model, self._environment)
        try:
            self._stack = await waiting(process, self._root, self._model)
        finally:
            if self._stack is None:
                await live.end(process)
        return self._stack

    async def _restart(self, way: str) -> dict[str, Any]:
        assert self._stack is not None
        for agent in self._agents:
            await self._stack.on_disk(agent)
        dying, self._stack = self._stack, None
        await dying.die()
        # A gateway that outlived `up` a little may have left it.
        (self._root / "run" / layout.GATEWAY_FILE).unlink(missing_ok=True)
        began = time.monotonic()
        known = KnownAgents(await self._start(live.serving), self._prompts, self._new)
        ready = time.monotonic() - began
        turns = await asyncio.gather(*(self._answer(known, way, agent) for agent in self._agents))
        arrivals = [turn.arrivals[0] - began for turn in turns]
        return {
            "ready": ready,
            "first_answered": min(arrivals),
            "all_answered": max(arrivals),
            "after_ready": max(arrivals) - ready,
            "agents": [{**asdict(turn), "arrivals": [], "token_ids": []} for turn in turns],
        }

    async def _answer(self, known: KnownAgents, way: str, agent: str) -> Turn:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                try:
                    if way == KEPT:
                        return await known.next_turn(agent, "warm", self._tokens, settle=False)
                    return await known.cold(self._tokens + self._new)
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
                    await asyncio.sleep(_AGAIN_SECONDS)


def figures(asked: dict[str, Any], samples: list[dict[str, Any]]) -> dict[str, Any]:
    ways = {way: {name: results.summary([each[way][name] for each in samples]) for name in MOMENTS} for way in WAYS}
    times = {
        name: results.summary([each[NOTHING][name] / each[KEPT][name] for each in samples])
        for name in ("all_answered", "after_ready")
    }
    return {"asked": asked, "ways": ways, "times_as_early": times, "samples": samples}


def tables(figures: dict[str, Any]) -> list[Table]:
    asked, ways, times = figures["asked"], figures["ways"], figures["times_as_early"]
    rows = [
        (label.format(**asked), *(spread(ways[way][name], 2, " s") for way in WAYS)) for name, label in MOMENTS.items()
    ]
    note = (
        f"Answered {times['all_answered']['median']:.1f} times as early, {times['after_ready']['median']:.1f} times "
        "from the ready gateway on, in the median of the samples' own ratios. Each agent's turn has "
        f"{asked['new']} new tokens and generates one. Median of {len(figures['samples'])} (range)."
    )
    title = f"{asked['agents']} agents of {asked['length']} tokens after a SIGKILL of everything: from process start"
    return [Table(title, ("", *WAYS), rows, note)]


async def main(arguments: argparse.Namespace) -> None:
    grown = arguments.length + (arguments.samples + 1) * (arguments.new + 1)
    asked = {name: getattr(arguments, name) for name in ("agents", "length", "new", "samples")}
    asked["model"] = model_name(arguments.model)
    output = arguments.output or f"restart-{asked['model']}-{results.backend()}"
    samples: list[dict[str, Any]] = []
    with live.scratch() as root:
        restarts = Restarts(root, arguments.model, arguments.agents, arguments.length, grown, arguments.new)
        try:
            await restarts.create()
            await restarts.sample(WAYS)
            for number in range(arguments.samples):
                samples.append(await restarts.sample(WAYS if number % 2 else WAYS[::-1]))
                found = figures(asked, samples)
                Console().print(f"sample {number + 1} of {arguments.samples}, in {results.write(output, found)}")
        finally:
            await restarts.stop()
    results.conclude(output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "restart-MODEL-BACKEND")
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model")
    found.add_argument("--agents", type=options.at_least(1), default=5)
    found.add_argument("--length", type=int, default=4096, help="tokens of each agent before the first restart")
    found.add_argument("--new", type=options.at_least(1), default=32, help="new tokens of each agent's turn")
    found.add_argument("--samples", type=options.at_least(1), default=3, help="restarts of each way, after one more")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
