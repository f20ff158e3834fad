"""From `agentmem up` to the first token: seconds and processor seconds of each process, over a kept data directory.

    agentmem bench start [--samples 5]
    agentmem bench start --against DIR      # another checkout, with its own .venv, sample by sample in turn

The clock begins when the process of `agentmem up` is started. The gateway is asked for its health by gRPC until it lets
calls through, and then for one token of a prompt of 16. The first start measures what is kept in the data directory
(products, the quality of quantized KV); it is kept apart, as is its bytecode, which it may write.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from agentmem.v1 import types_pb2
from benchmarks import live, options, results
from benchmarks.conversations import NOBODY
from benchmarks.live import MODULES
from benchmarks.models import model_name
from benchmarks.starts import PARTS, events, parts
from benchmarks.tables import Table, spread

__all__ = ["main", "tables"]

HERE, OTHER = "agentmem", "the other checkout"
PROCESSES = ("up", *MODULES)
MOMENTS = {"ready": "the gateway lets calls through", "first_token": "the first token"}
_PROMPT = types_pb2.TokenIds(ids=range(10, 26))
_LOG = {"AGENTMEM_UP_LOG_FORMAT": "json"}


async def start(root: Path, model: str, checkout: Path | None) -> dict[str, Any]:
    """One start over ROOT, and its end. `parts` are those of this checkout's log only."""
    (root / "run").mkdir(exist_ok=True)
    wall, began = time.time(), time.monotonic()
    process = await live.launch(root, model, _LOG, checkout=checkout)
    stack = None
    try:
        stack = await live.serving(process, root, model)
        ready, found = time.monotonic() - began, time.time()
        turn = await stack.ask(NOBODY, 1, token_ids=_PROMPT)
        processes = {"up": psutil.Process(process.pid), **{name: stack.process(name) for name in MODULES}}
        used = {name: each.cpu_times() for name, each in processes.items()}
        return {
            "ready": ready,
            "first_token": turn.arrivals[0] - began,
            "processor": {name: times.user + times.system for name, times in used.items()},
            "parts": {} if checkout else parts(events(root / "up.log"), wall, found),
        }
    finally:
        await (stack.close() if stack else live.end(process))


def figures(asked: dict[str, Any], first: dict[str, Any], samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What is written: of each way its first start, medians of the later ones, and of their ratios where it has two."""
    ways = {}
    for way in first:
        mine = [sample[way] for sample in samples]
        ways[way] = {
            "first": first[way],
            **{name: results.summary([each[name] for each in mine]) for name in MOMENTS},
            "processor": {name: results.summary([each["processor"][name] for each in mine]) for name in PROCESSES},
            "parts": {name: results.summary([each["parts"][name] for each in mine]) for name in mine[0]["parts"]},
        }
    found: dict[str, Any] = {"asked": asked, "ways": ways, "samples": samples}
    if OTHER in first:
        ratios = [sample[OTHER]["first_token"] / sample[HERE]["first_token"] for sample in samples]
        found["times_as_early"] = results.summary(ratios)
    return found


def tables(figures: dict[str, Any]) -> list[Table]:
    """When what is reached, where the time goes, and each process's work."""
    ways, count = figures["ways"], len(figures["samples"])
    columns = ("", *ways)
    note = f"Median of {count} (range), after a first start."
    if times := figures.get("times_as_early"):
        note += f" The first token {times['median']:.2f} times as early, in the median of the samples' own ratios."
    first = {name: tuple(f"{way['first'][name]:.2f} s" for way in ways.values()) for name in MOMENTS}
    return [
        Table(
            f"A start of `agentmem up` ({figures['asked']['model']}), from process start",
            columns,
            [
                *((label, *(spread(way[name], 2, " s") for way in ways.values())) for name, label in MOMENTS.items()),
                *((f"{label}, over an empty directory", *first[name]) for name, label in MOMENTS.items()),
            ],
            note,
        ),
        Table(
            "Where a start's time goes",
            ("", HERE),
            [(label, spread(ways[HERE]["parts"][name], 2, " s")) for name, label in PARTS.items()],
        ),
        Table(
            "Processor seconds until the first token",
            columns,
            [(name, *(spread(way["processor"][name], 2, " s") for way in ways.values())) for name in PROCESSES],
        ),
    ]


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write after each sample."""
    console = Console()
    ways: dict[str, Path | None] = {HERE: None}
    if arguments.against:
        ways[OTHER] = arguments.against.resolve()
    asked = {
        "model": model_name(arguments.model),
        "samples": arguments.samples,
        "against": str(arguments.against or ""),
    }
    output = arguments.output or f"start-{asked['model']}-{results.backend()}"
    with live.scratch() as root:
        roots = {way: root / str(number) for number, way in enumerate(ways)}
        for each in roots.values():
            each.mkdir()

        async def sample(order: list[str]) -> dict[str, Any]:
            return {way: await start(roots[way], arguments.model, ways[way]) for way in order}

        first, samples = await sample(list(ways)), []
        for number in range(arguments.samples):
            samples.append(await sample(list(ways) if number % 2 else list(reversed(ways))))
            found = figures(asked, first, samples)
            console.print(f"sample {number + 1} of {arguments.samples}, in {results.write(output, found)}")
    results.conclude(output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model")
    found.add_argument("--samples", type=options.at_least(1), default=5, help="starts, besides the first")
    found.add_argument("--against", type=Path, help="another checkout of Agentmem, after `make setup` in it")
    found.add_argument("--output", help="name of the file under benchmarks/results (default: start-MODEL-BACKEND)")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
