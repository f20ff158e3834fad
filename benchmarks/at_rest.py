"""What a start takes until the first answer, and what a stack takes that does nothing; beside mlx_lm.server.

    agentmem bench at-rest [--starts 3] [--seconds 30]

Both are started in turns, with the demo model and files in the page cache. The clock ends when a chat completion of one
token is answered over HTTP. The first sample of `agentmem up` is over an empty data directory, where kernels and the
model's quality are measured. Last, each server is left alone.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks import live, options, results, scraping
from benchmarks.live import MODULES
from benchmarks.models import DEMO
from benchmarks.tables import Table, spread
from gateway.cli.up.openblas import preload_here

FIRST, LATER, MLX_LM = "agentmem, first", "agentmem, later", "mlx_lm.server"
WAYS = (FIRST, LATER, MLX_LM)
_SETTLE_SECONDS, _START_SECONDS, _AGAIN_SECONDS = 3.0, 240.0, 0.02
_BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "temperature": 0}


@dataclass(frozen=True)
class Start:
    """Seconds until a server answered; its processes' processor seconds and bytes of RSS then, by name."""

    answered: float
    processor: dict[str, float]
    rss: dict[str, int]

    @classmethod
    def of(cls, began: float, processes: dict[str, psutil.Process]) -> "Start":
        taken = {name: _processor_seconds(each) for name, each in processes.items()}
        rss = {name: each.memory_info().rss for name, each in processes.items()}
        return cls(time.monotonic() - began, taken, rss)


@dataclass(frozen=True)
class Started:
    """A server that has answered."""

    start: Start
    processes: dict[str, psutil.Process]


@asynccontextmanager
async def agentmem(root: Path) -> AsyncIterator[Started]:
    """`agentmem up` over ROOT/data."""
    began = time.monotonic()
    process = await live.launch(root)
    stack = None
    try:
        stack = await live.ready(process, root, "demo")
        await _answer(f"http://{stack.addresses['http']}", "demo")
        processes = {"up": psutil.Process(process.pid), **{name: stack.process(name) for name in MODULES}}
        yield Started(Start.of(began, processes), processes)
    finally:
        await (stack.close() if stack is not None else live.end(process))


@asynccontextmanager
async def mlx_lm() -> AsyncIterator[Started]:
    port, began = scraping.free_ports(1), time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mlx_lm", "server", "--model", str(DEMO), "--port", str(port)),
        stdout=DEVNULL,
        stderr=DEVNULL,
        env={**os.environ, **preload_here().environment},
    )
    try:
        await _answer(f"http://127.0.0.1:{port}", str(DEMO), process)
        processes = {"mlx_lm": psutil.Process(process.pid)}
        yield Started(Start.of(began, processes), processes)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _answer(url: str, model: str, process: Process | None = None) -> None:
    """Ask for one token until it comes. Raises RuntimeError where the process ends, TimeoutError after minutes."""
    body = json.dumps({"model": model, **_BODY}).encode()
    headers = {"Content-Type": "application/json", "X-Agent-ID": "first"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    async with asyncio.timeout(_START_SECONDS):
        while not await asyncio.to_thread(_answered, request):
            if process is not None and process.returncode is not None:
                raise RuntimeError(f"mlx_lm's server ended with {process.returncode}")
            await asyncio.sleep(_AGAIN_SECONDS)


def _answered(request: urllib.request.Request) -> bool:
    """Return whether a completion of one token came. Raises RuntimeError for another answer."""
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            tokens = json.load(response)["usage"]["completion_tokens"]
    except (urllib.error.URLError, ConnectionError):
        return False
    if tokens != 1:
        raise RuntimeError(f"an answer of {tokens} tokens, where one was asked for")
    return True


async def idle(started: Started, seconds: float, settle: float = _SETTLE_SECONDS) -> dict[str, float]:
    """Return what each process takes of one core while nothing is asked of it."""
    await asyncio.sleep(settle)
    before, began = {name: _processor_seconds(each) for name, each in started.processes.items()}, time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    return {name: (_processor_seconds(each) - before[name]) / took for name, each in started.processes.items()}


async def measure(starts: int, seconds: float, console: Console) -> dict[str, Any]:
    """All starts, in turns, and the rest of the last of each server."""
    samples: dict[str, list[Start]] = {way: [] for way in WAYS}
    at_rest: dict[str, dict[str, float]] = {}
    for number in range(starts + 1):
        with live.scratch() as root:
            for way in WAYS:
                async with mlx_lm() if way == MLX_LM else agentmem(root) as started:
                    if number:  # the one before warms the page cache
                        samples[way].append(started.start)
                    if number == starts and way != FIRST:
                        at_rest[way] = await idle(started, seconds)
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
    found = options.parser(__doc__)
    found.add_argument("--starts", type=options.at_least(1), default=3, help="starts of each, besides one to warm up")
    found.add_argument("--seconds", type=float, default=30.0, help="how long each server is left alone")
    found.add_argument("--output", help="name of the file under benchmarks/results (default: at-rest-demo-BACKEND)")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
