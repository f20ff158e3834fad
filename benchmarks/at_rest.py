"""What a start takes until the first answer, and what a stack takes that does nothing; beside mlx_lm.server.

    agentmem bench at-rest [--starts 3] [--seconds 30]

`agentmem up` and mlx_lm's server are started in turns, each with the demo model and OpenBLAS where it is installed. The
clock begins when the process is started, and ends when a chat completion of one token is answered over HTTP, which is
asked for again and again until then. The first sample of `agentmem up` is over an empty data directory, where kernels,
activations and the model's quality are measured; the later ones are over the same one. Files are in the page cache: of
each server, one start before the first sample does not count.

Processor time is that of all of a server's processes, from the first instruction to the answer. RSS is looked at then.
Last, the servers are left alone for so many seconds, each by itself: what their processes take of one core.
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
from benchmarks.starts import PARTS, events, parts
from benchmarks.tables import Table, spread
from gateway.cli.up.openblas import preload_here

FIRST, LATER, MLX_LM = "agentmem, first", "agentmem, later", "mlx_lm.server"
WAYS = (FIRST, LATER, MLX_LM)
_SETTLE_SECONDS, _START_SECONDS, _AGAIN_SECONDS = 3.0, 240.0, 0.02
_BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "temperature": 0}


@dataclass(frozen=True)
class Start:
    """One start: seconds until a server answered, and until it said that it is ready; its processes then, by name."""

    answered: float
    ready: float
    parts: dict[str, float]
    processor: dict[str, float]
    rss: dict[str, int]


@dataclass(frozen=True)
class Started:
    """A server that has answered."""

    start: Start
    processes: dict[str, psutil.Process]


@asynccontextmanager
async def agentmem(root: Path) -> AsyncIterator[Started]:
    """`agentmem up` over ROOT/data."""
    wall, began = time.time(), time.monotonic()
    process = await live.launch(root, "demo", {"AGENTMEM_UP_LOG_FORMAT": "json"})
    stack = None
    try:
        stack = await live.ready(process, root, "demo")
        ready, found = time.monotonic() - began, time.time()
        await _answer(f"http://{stack.addresses['http']}", "demo")
        processes = {"up": psutil.Process(process.pid), **{name: stack.process(name) for name in MODULES}}
        moments = ready, parts(events(root / "up.log"), wall, found)
        yield Started(_start(time.monotonic() - began, *moments, processes), processes)
    finally:
        await (stack.close() if stack is not None else live.end(process))


@asynccontextmanager
async def mlx_lm() -> AsyncIterator[Started]:
    """mlx_lm's server with the same model."""
    port = scraping.free_ports(1)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mlx_lm", "server", "--model", str(DEMO), "--port", str(port)),
        stdout=DEVNULL,
        stderr=DEVNULL,
        env={**os.environ, **preload_here().environment},
    )
    try:
        await _answer(f"http://127.0.0.1:{port}", str(DEMO), process)
        answered, processes = time.monotonic() - began, {"mlx_lm": psutil.Process(process.pid)}
        yield Started(_start(answered, answered, {}, processes), processes)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _start(answered: float, ready: float, of_it: dict[str, float], processes: dict[str, psutil.Process]) -> Start:
    taken = {name: _processor_seconds(each) for name, each in processes.items()}
    return Start(answered, ready, of_it, taken, {name: each.memory_info().rss for name, each in processes.items()})


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _answer(url: str, model: str, process: Process | None = None) -> None:
    """Ask for one token until it comes. Raises RuntimeError where the process ends, TimeoutError after minutes."""
    body = json.dumps({"model": model, **_BODY}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", body, {"Content-Type": "application/json", "X-Agent-ID": "first"}
    )
    async with asyncio.timeout(_START_SECONDS):
        while not await asyncio.to_thread(_answered, request):
            if process is not None and process.returncode is not None:
                raise RuntimeError(f"mlx_lm's server ended with {process.returncode}")
            await asyncio.sleep(_AGAIN_SECONDS)


def _answered(request: urllib.request.Request) -> bool:
    """Whether a completion of one token came. Raises RuntimeError for another answer."""
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            tokens = json.load(response)["usage"]["completion_tokens"]
    except (urllib.error.URLError, ConnectionError):
        return False
    if tokens != 1:
        raise RuntimeError(f"an answer of {tokens} tokens, where one was asked for")
    return True


async def idle(started: Started, seconds: float, settle: float = _SETTLE_SECONDS) -> dict[str, float]:
    """What each process takes of one core while nothing is asked of it, once it had time to settle."""
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
    """What is written: medians of each way, of each sample's ratio to mlx_lm.server's of the same round, and all
    samples."""
    ways = {}
    for way, mine in samples.items():
        ways[way] = {
            "answered": results.summary([each.answered for each in mine]),
            "times_of_mlx_lm": results.summary(
                [each.answered / other.answered for each, other in zip(mine, samples[MLX_LM], strict=True)]
            ),
            "processor": results.summary([sum(each.processor.values()) for each in mine]),
            "rss": {name: results.summary([each.rss[name] for each in mine]) for name in mine[0].rss},
            "parts": {name: results.summary([each.parts[name] for each in mine]) for name in mine[0].parts},
        }
    raw = {way: [asdict(each) for each in mine] for way, mine in samples.items()}
    return {"asked": asked, "ways": ways, "at_rest": at_rest, "samples": raw}


def tables(figures: dict[str, Any]) -> list[Table]:
    """Starts, their parts, and what is taken at rest."""
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
            "Where a start's time goes",
            ("", FIRST, LATER),
            [
                (label, *(spread(ways[way]["parts"][name], 2, " s") for way in (FIRST, LATER)))
                for name, label in PARTS.items()
            ],
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
    """Measure, print, write."""
    found = await measure(arguments.starts, arguments.seconds, Console())
    results.conclude(arguments.output or f"at-rest-demo-{results.backend()}", found, tables(found))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--starts", type=options.at_least(1), default=3, help="starts of each, besides one to warm up")
    found.add_argument("--seconds", type=float, default=30.0, help="how long each server is left alone")
    found.add_argument("--output", help="name of the file under benchmarks/results (default: at-rest-demo-BACKEND)")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
