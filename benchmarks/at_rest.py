"""Starts until the first answer, and stacks that do nothing, beside mlx_lm.server: seconds, processors, memory.

    agentmem bench at-rest [--starts 3] [--seconds 30]

Both are started in turns, with the demo model and files in the page cache. The clock ends when a chat completion of one
token is answered over HTTP. The first sample of `agentmem up` is over an empty data directory, where kernels and the
model's quality are measured. Last, each server is left alone.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks import live, options, results
from benchmarks.models import DEMO, Weights
from benchmarks.peers.servers import Agentmem, MlxLm, Room, Server
from benchmarks.tables import Table, spread

FIRST, LATER, MLX_LM = "agentmem, first", "agentmem, later", "mlx_lm.server"
WAYS = (FIRST, LATER, MLX_LM)
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True)
class Start:
    """Seconds until a server answered; processor seconds and bytes of RSS of its processes by then."""

    answered: float
    processor: dict[str, float]
    rss: dict[str, int]


@asynccontextmanager
async def started(kind: type[Server], root: Path) -> AsyncIterator[tuple[Start, dict[str, psutil.Process]]]:
    """Start a server over ROOT and ask it once. Raises RuntimeError."""
    server = kind(root, Weights("demo", DEMO, None, "the file's"), Room(os.cpu_count() or 1, 1))
    began = time.monotonic()
    try:
        await server.start()
        answer = await server.client.ask([{"role": "user", "content": "hello"}], 1, agent="first")
        seconds = time.monotonic() - began
        if answer.error or answer.generated != 1:
            raise RuntimeError(f"{server.name} did not answer: {answer}")
        first = psutil.Process(server.pid)
        processes = {"up" if kind is Agentmem else "mlx_lm": first}
        for child in first.children(recursive=True):
            processes |= {name: child for name, module in live.MODULES.items() if module in child.cmdline()}
        taken = {name: _processor_seconds(each) for name, each in processes.items()}
        rss = {name: each.memory_info().rss for name, each in processes.items()}
        yield Start(seconds, taken, rss), processes
    finally:
        await server.stop()


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def idle(
    processes: dict[str, psutil.Process], seconds: float, settle: float = _SETTLE_SECONDS
) -> dict[str, float]:
    """Return the share of one core that each process takes while nothing is asked of it."""
    await asyncio.sleep(settle)
    before, began = {name: _processor_seconds(each) for name, each in processes.items()}, time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    return {name: (_processor_seconds(each) - before[name]) / took for name, each in processes.items()}


async def measure(starts: int, seconds: float, console: Console) -> dict[str, Any]:
    samples: dict[str, list[Start]] = {way: [] for way in WAYS}
    at_rest: dict[str, dict[str, float]] = {}
    for number in range(starts + 1):
        with live.scratch() as root:
            for way in WAYS:
                kind = MlxLm if way == MLX_LM else Agentmem
                async with started(kind, root / kind.name) as (start, processes):
                    if number:  # the one before warms the page cache
                        samples[way].append(start)
                    if number == starts and way != FIRST:
                        at_rest[way] = await idle(processes, seconds)
        console.print(f"start {number} of {starts}")
    return figures({"starts": starts, "seconds": seconds}, samples, at_rest)


def figures(
    asked: dict[str, Any], samples: dict[str, list[Start]], at_rest: dict[str, dict[str, float]]
) -> dict[str, Any]:
    ways = {}
    for way, mine in samples.items():
        ways[way] = {
            "answered": results.summary([each.answered for each in mine]),
            "times_of_mlx_lm": results.summary(
                [each.answered / other.answered for each, other in zip(mine, samples[MLX_LM], strict=True)]
            ),
            "processor": results.summary([sum(each.processor.values()) for each in mine]),
            "rss": {name: results.summary([each.rss[name] for each in mine]) for name in mine[0].rss},
        }
    raw = {way: [asdict(each) for each in mine] for way, mine in samples.items()}
    return {"asked": asked, "ways": ways, "at_rest": at_rest, "samples": raw}


def tables(figures: dict[str, Any]) -> list[Table]:
    ways, at_rest = figures["ways"], figures["at_rest"]
    lines = {"until the first answer": "answered", "processor time until then": "processor"}
    processes = [name for way in (FIRST, MLX_LM) for name in ways[way]["rss"]]

    def megabytes(way: str, process: str) -> str:
        found = ways[way]["rss"].get(process)
        return "" if found is None else f"{found['median'] / 1e6:.0f} MB"

    def share(way: str, process: str) -> str:
        found = at_rest.get(way, {}).get(process)
        return "" if found is None else f"{100 * found:.2f} %"

    return [
        Table(
            "From process start to the first answer",
            ("", *WAYS),
            [
                *((label, *(spread(ways[way][name], 2, " s") for way in WAYS)) for label, name in lines.items()),
                ("times mlx_lm.server's", *(spread(ways[way]["times_of_mlx_lm"], 2, "") for way in WAYS)),
                *((f"RSS of {name}", *(megabytes(way, name) for way in WAYS)) for name in processes),
            ],
            f"Median of {figures['asked']['starts']} (range).",
        ),
        Table(
            f"At rest: of one core, over {figures['asked']['seconds']:g} s",
            ("", LATER, MLX_LM),
            [
                *((name, share(LATER, name), share(MLX_LM, name)) for name in processes),
                ("together", *(f"{100 * sum(at_rest[way].values()):.2f} %" for way in (LATER, MLX_LM))),
            ],
        ),
    ]


async def main(arguments: argparse.Namespace) -> None:
    found = await measure(arguments.starts, arguments.seconds, Console())
    results.conclude(arguments.output or f"at-rest-demo-{results.backend()}", found, tables(found))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "at-rest-demo-BACKEND")
    found.add_argument("--starts", type=options.at_least(1), default=3, help="starts of each, besides one to warm up")
    found.add_argument("--seconds", type=float, default=30.0, help="how long each server is left alone")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
