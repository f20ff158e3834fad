"""From process start until all agents have answered, after a SIGKILL of everything; against computing them again.

    agentmem bench restart [--agents 5] [--length 4096] [--samples 3]

All agents are asked at once as soon as the gateway lets calls through. The other way sends the same prompts without a
name and with CACHE_POLICY_RECOMPUTE. The two take turns; the first sample of each is not counted.
"""

import argparse
import asyncio
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console

from agentmem import layout
from agentmem.v1 import inference_pb2, types_pb2
from benchmarks import live, options, results
from benchmarks.live import LiveStack
from benchmarks.models import model_name
from benchmarks.prompts import token_ids
from benchmarks.tables import Table, spread
from benchmarks.turns import Turn, check

KEPT, NOTHING = "agentmem", "computed anew"
WAYS = (KEPT, NOTHING)
MOMENTS = {
    "ready": "the gateway is ready",
    "first_answered": "the first agent's first token",
    "all_answered": "all {agents} agents have answered",
    "after_ready": "of that, after the gateway was ready",
}
_AGAIN_SECONDS, _PATIENCE_SECONDS = 0.02, 600.0


NOBODY = ""
"""The agent id that keeps nothing."""


@dataclass
class Conversation:
    """One agent's tokens as they are in its ledger; its client sends all of them each turn."""

    agent: str
    token_ids: list[int] = field(default_factory=list)

    def prompt(self, new: int) -> list[int]:
        """All that was said, and so many tokens more, which nobody has seen."""
        return [*self.token_ids, *token_ids(new, f"{self.agent}, from {len(self.token_ids)}")]

    def heard(self, prompt: list[int], turn: Turn) -> None:
        self.token_ids = [*prompt, *turn.token_ids]


async def ask(stack: LiveStack, agent: str, prompt: list[int], generated: int) -> Turn:
    """One turn with the whole prompt; of NOBODY all of it is computed."""
    policy = inference_pb2.CACHE_POLICY_KEEP if agent else inference_pb2.CACHE_POLICY_RECOMPUTE
    sampling = types_pb2.Sampling(ignore_eos=True)
    tokens = types_pb2.TokenIds(ids=prompt)
    return await stack.ask(agent, generated, token_ids=tokens, sampling=sampling, cache_policy=policy)


class Restarts:
    """Agents that outlive their stack. `root` holds what is kept."""

    def __init__(self, root: Path, model: str, agents: int, context: int, new: int, generated: int) -> None:
        self._root, self._model, self._new, self._generated = root, model, new, generated
        self._environment = {"AGENTMEM_WORKER_CONTEXT_LENGTH": str(context)}
        self._agents = [Conversation(f"restarted {number}") for number in range(agents)]
        self._stack: LiveStack | None = None

    async def create(self, length: int, stack: LiveStack | None = None) -> None:
        """Compute all agents in `stack`, or in a new one."""
        stack = self._stack = stack or await self._start(live.ready)
        for agent in self._agents:
            prompt = agent.prompt(length - self._generated)
            turn = await ask(stack, agent.agent, prompt, self._generated)
            check(turn, len(prompt), self._generated, 0)
            agent.heard(prompt, turn)

    async def sample(self, ways: Sequence[str]) -> dict[str, dict[str, Any]]:
        prompts = [agent.prompt(self._new) for agent in self._agents]
        found, answered = {}, []
        for way in ways:
            names = [agent.agent if way == KEPT else NOBODY for agent in self._agents]
            found[way], turns = await self._restart(names, prompts)
            for agent, prompt, turn in zip(self._agents, prompts, turns, strict=True):
                reused, tiers = (len(agent.token_ids), ("warm",)) if way == KEPT else (0, ())
                check(turn, len(prompt), self._generated, reused, tiers)
            if way == KEPT:
                answered = turns
        for agent, prompt, turn in zip(self._agents, prompts, answered, strict=True):
            agent.heard(prompt, turn)
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

    async def _restart(self, names: list[str], prompts: list[list[int]]) -> tuple[dict[str, Any], list[Turn]]:
        assert self._stack is not None
        for agent in self._agents:
            await self._stack.on_disk(agent.agent)
        dying, self._stack = self._stack, None
        await dying.die()
        # A gateway that outlived `up` a little may have left it.
        (self._root / "run" / layout.GATEWAY_FILE).unlink(missing_ok=True)
        began = time.monotonic()
        stack = await self._start(live.serving)
        ready = time.monotonic() - began
        turns = await asyncio.gather(*map(self._answer, [stack] * len(names), names, prompts))
        last = max(turn.arrivals[-1] for turn in turns) - began
        return {
            "ready": ready,
            "first_answered": min(turn.arrivals[0] for turn in turns) - began,
            "all_answered": last,
            "after_ready": last - ready,
            "agents": [{**asdict(turn), "arrivals": [], "token_ids": []} for turn in turns],
        }, list(turns)

    async def _answer(self, stack: LiveStack, name: str, prompt: list[int]) -> Turn:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                try:
                    return await ask(stack, name, prompt, self._generated)
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
        f"{asked['new']} new tokens and generates {asked['generated']}. Median of {len(figures['samples'])} (range)."
    )
    title = f"{asked['agents']} agents of {asked['length']} tokens after a SIGKILL of everything: from process start"
    return [Table(title, ("", *WAYS), rows, note)]


async def main(arguments: argparse.Namespace) -> None:
    grown = arguments.length + (arguments.samples + 1) * (arguments.new + arguments.generated)
    asked = {name: getattr(arguments, name) for name in ("agents", "length", "new", "generated", "samples")}
    asked["model"] = model_name(arguments.model)
    output = arguments.output or f"restart-{asked['model']}-{results.backend()}"
    samples: list[dict[str, Any]] = []
    with live.scratch() as root:
        sizes = (arguments.agents, grown, arguments.new, arguments.generated)
        restarts = Restarts(root, arguments.model, *sizes)
        try:
            await restarts.create(arguments.length)
            await restarts.sample(WAYS)
            for number in range(arguments.samples):
                samples.append(await restarts.sample(WAYS if number % 2 else WAYS[::-1]))
                found = figures(asked, samples)
                Console().print(f"sample {number + 1} of {arguments.samples}, in {results.write(output, found)}")
        finally:
            await restarts.stop()
    results.conclude(output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__)
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model")
    found.add_argument("--agents", type=options.at_least(1), default=5)
    found.add_argument("--length", type=int, default=4096, help="tokens of each agent before the first restart")
    found.add_argument("--new", type=options.at_least(1), default=32, help="new tokens of each agent's turn")
    found.add_argument("--generated", type=options.at_least(1), default=4, help="tokens that each turn generates")
    found.add_argument("--samples", type=options.at_least(1), default=3, help="restarts of each way, after one more")
    found.add_argument("--output", help="name of the file under benchmarks/results (default: restart-MODEL-BACKEND)")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
