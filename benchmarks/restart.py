"""From process start until five agents of 4K have answered, after a SIGKILL of everything; against computing them anew.

    agentmem bench restart [--agents 5] [--length 4096] [--samples 3]
    agentmem bench restart --model llama-3.1-8b=DIR --samples 2

All through the gateway, by gRPC. `agentmem up` and its three services are killed with SIGKILL and started again over
the same data directory. As soon as the gateway lets calls through, all agents are asked at once, each for a next
turn of `--new` new tokens; a client whose call is UNAVAILABLE calls again. The clock begins when the process of
`agentmem up` is started, and ends with the last agent's last token.

Against that, the same stack, killed and started likewise, and the very same requests, token for token, without an
agent's name and with CACHE_POLICY_RECOMPUTE: all prompts are computed anew and nothing is kept. The two ways take
turns; the first sample of each warms the page cache and is kept apart. Weights are hashed, and kernels measured, once
for a data directory: before, for both. Files of KV are in the page cache.

Where the start's time goes is read from the services' logs: a service's part begins when `agentmem up` starts it.
"""

import argparse
import asyncio
import statistics
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console

from agentmem import layout
from benchmarks import live, options, results
from benchmarks.conversations import NOBODY, Conversation, ask
from benchmarks.live import LiveStack
from benchmarks.models import model_name
from benchmarks.starts import IN_TURN, PARTS, events, parts
from benchmarks.tables import Table, milliseconds, spread
from benchmarks.turns import Turn, check

__all__ = ["main", "tables"]

KEPT, NOTHING = "agentmem", "computed anew"
WAYS = (KEPT, NOTHING)
_MOMENTS = ("ready", "first_answered", "all_answered", "after_ready")
_AGAIN_SECONDS, _PATIENCE_SECONDS = 0.02, 600.0


@dataclass(frozen=True)
class Answer:
    """An agent's turn. `first` and `last` are seconds from the process start to its first and last token."""

    turn: Turn
    first: float
    last: float
    calls: int


class Restarts:
    """Agents that outlive their stack. `root` holds what is kept, between starts."""

    def __init__(self, root: Path, model: str, agents: int, context: int, new: int, generated: int) -> None:
        self._root, self._model = root, model
        self._count, self._new, self._generated = agents, new, generated
        self._environment = {"AGENTMEM_UP_LOG_FORMAT": "json", "AGENTMEM_WORKER_CONTEXT_LENGTH": str(context)}
        self._agents: list[Conversation] = []
        self._stack: LiveStack | None = None

    async def create(self, length: int, stack: LiveStack | None = None) -> dict[str, Any]:
        """All agents, computed in a stack over `root` or in a new one, and on disk; what describes the model."""
        stack = self._stack = stack or await self._start(live.ready)
        model = await stack.describe_model()
        self._agents = [Conversation(f"restarted {number}") for number in range(self._count)]
        for agent in self._agents:
            prompt = agent.prompt(length - self._generated)
            turn = await ask(stack, agent.agent, prompt, self._generated)
            check(turn, len(prompt), self._generated, 0)
            agent.heard(prompt, turn)
        return {"architecture": model.architecture, "kv_bytes_per_token": model.kv_bytes_per_token}

    async def sample(self, ways: Sequence[str]) -> dict[str, dict[str, Any]]:
        """One restart for each way, in that order, with the same prompts; the agents go on from their answers."""
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
        """End the stack, if there is one."""
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
        (self._root / "run" / layout.GATEWAY_FILE).unlink(
            missing_ok=True
        )  # A gateway that outlived `up` a little took it.
        wall, began = time.time(), time.monotonic()
        await self._start(live.serving)
        ready, found = time.monotonic() - began, time.time()
        asking = [self._answer(name, prompt, began) for name, prompt in zip(names, prompts, strict=True)]
        answers = await asyncio.gather(*asking)
        all_answered = max(answer.last for answer in answers)
        return {
            "ready": ready,
            "parts": parts(events(self._root / "up.log"), wall, found),
            "first_answered": min(answer.first for answer in answers),
            "all_answered": all_answered,
            "after_ready": all_answered - ready,
            "agents": [
                {
                    **{"prompt": answer.turn.prompt, "first": answer.turn.first, "seconds": answer.turn.seconds},
                    **{"load": answer.turn.load, "load_bytes": answer.turn.load_bytes, "prefill": answer.turn.prefill},
                    **{"queue": answer.turn.queue, "cached": answer.turn.cached, "calls": answer.calls},
                    "answered": answer.last,
                }
                for answer in answers
            ],
        }, [answer.turn for answer in answers]

    async def _answer(self, name: str, prompt: list[int], began: float) -> Answer:
        assert self._stack is not None
        calls = 0
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                calls += 1
                try:
                    turn = await ask(self._stack, name, prompt, self._generated)
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
                    await asyncio.sleep(_AGAIN_SECONDS)
                else:
                    return Answer(turn, turn.arrivals[0] - began, turn.arrivals[-1] - began, calls)


def figures(asked: dict[str, Any], warm_up: Any, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What is written: medians of each way's moments and parts, of the agents' turns, and all samples."""
    ways = {}
    for way in WAYS:
        mine = [sample[way] for sample in samples]
        agents = [agent for each in mine for agent in each["agents"]]
        ways[way] = {
            **{name: results.summary([each[name] for each in mine]) for name in _MOMENTS},
            "parts": {name: results.summary([each["parts"][name] for each in mine]) for name in PARTS},
            "turns": {
                name: results.summary([agent[name] for agent in agents])
                for name in ("first", "queue", "load", "prefill", "load_bytes")
            },
            "calls": statistics.mean(agent["calls"] for agent in agents),
        }
    ratios = {
        name: [sample[NOTHING][name] / sample[KEPT][name] for sample in samples]
        for name in ("all_answered", "after_ready")
    }
    times = {name: results.summary(each) for name, each in ratios.items()}
    return {"asked": asked, "ways": ways, "times_as_early": times, "warm_up": warm_up, "samples": samples}


def tables(figures: dict[str, Any]) -> list[Table]:
    """When the agents have answered, how the start goes, and their turns."""
    asked, ways, times = figures["asked"], figures["ways"], figures["times_as_early"]
    columns = ("", *WAYS)
    moments = {
        "the gateway is ready": "ready",
        "the first agent's first token": "first_answered",
        f"all {asked['agents']} agents have answered": "all_answered",
        "of that, after the gateway was ready": "after_ready",
    }
    labels = {
        "first": "first token",
        "queue": "of it waiting and loading",
        "load": "of that loading",
        "prefill": "computing the prompt",
    }
    agents, early, later = asked["agents"], times["all_answered"]["median"], times["after_ready"]["median"]
    note = (
        f"Answered {early:.1f} times as early, {later:.1f} times from the ready gateway on, in the median of the "
        f"samples' own ratios. Each agent's turn has {asked['new']} new tokens and generates {asked['generated']}. "
        f"Median of {len(figures['samples'])} (range)."
    )
    return [
        Table(
            f"{agents} agents of {asked['length']} tokens after a SIGKILL of everything: from process start",
            columns,
            [(label, *(spread(ways[way][name], 2, " s") for way in WAYS)) for label, name in moments.items()],
            note,
        ),
        Table(
            "Where a start's time goes",
            columns,
            [
                ({**PARTS, **IN_TURN}[name], *(spread(ways[way]["parts"][name], 2, " s") for way in WAYS))
                for name in ways[KEPT]["parts"]
            ],
        ),
        Table(
            f"The turns of the {agents} agents, asked at once",
            columns,
            [
                *((label, *(milliseconds(ways[way]["turns"][name]) for way in WAYS)) for name, label in labels.items()),
                ("KV read", *(f"{ways[way]['turns']['load_bytes']['median'] / 1e6:.1f} MB" for way in WAYS)),
            ],
        ),
    ]


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write after each sample."""
    grown = arguments.length + (arguments.samples + 1) * (arguments.new + arguments.generated)
    console = Console()
    with live.scratch() as root:
        sizes = (arguments.agents, grown, arguments.new, arguments.generated)
        restarts = Restarts(root, arguments.model, *sizes)
        try:
            console.print(f"computing {arguments.agents} agents of {arguments.length} tokens …")
            described = await restarts.create(arguments.length)
            names = ("agents", "length", "new", "generated", "samples")
            asked = {**{name: getattr(arguments, name) for name in names}, **described}
            asked["model"] = model_name(arguments.model)
            output = arguments.output or f"restart-{asked['model']}-{results.backend()}"
            warm_up = await restarts.sample(WAYS)
            samples: list[dict[str, Any]] = []
            for number in range(arguments.samples):
                samples.append(await restarts.sample(WAYS if number % 2 else tuple(reversed(WAYS))))
                found = figures(asked, warm_up, samples)
                path = results.write(output, found)
                console.print(f"sample {number + 1} of {arguments.samples}, in {path}")
        finally:
            await restarts.stop()
    results.conclude(output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model")
    found.add_argument("--agents", type=options.at_least(1), default=5)
    found.add_argument("--length", type=int, default=4096, help="tokens of each agent before the first restart")
    found.add_argument("--new", type=options.at_least(1), default=32, help="new tokens of each agent's turn")
    found.add_argument("--generated", type=options.at_least(1), default=4, help="tokens that each turn generates")
    found.add_argument(
        "--samples", type=options.at_least(1), default=3, help="restarts of each way, besides one to warm up"
    )
    found.add_argument("--output", help="name of the file under benchmarks/results (default: restart-MODEL-BACKEND)")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
