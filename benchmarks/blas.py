"""What OpenBLAS does for a worker on Linux without a GPU, and threads of it that sleep sooner or later.

    agentmem bench blas [--tokens 1000] [--decoded 32] [--samples 5]

MLX calls the BLAS that the system's libblas.so.3 is; `agentmem up` preloads OpenBLAS into the worker, and says after
how many cycles its idle threads sleep: 2^26 by default. Processes that differ in this alone take turns: float32
products of 512 x 512 matrices, as `agentmem doctor` times them, and the engine computing a long and a short prompt of
the demo model and decoding behind the long one, which is not products alone. Processor time is that of all threads. The
first sample is a warm-up.
"""

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

from benchmarks import children, options, results
from benchmarks.children import Child
from benchmarks.models import DEMO
from benchmarks.tables import Table, milliseconds, spread
from gateway.cli.up.openblas import TIMEOUT, preload_here

SYSTEM, OPENBLAS = "system", "OpenBLAS"
SLEEPING = {"2^16 cycles": "16", "2^8 cycles": "8"}
"""OpenBLAS whose idle threads sleep sooner: what TIMEOUT is set to."""
WAYS = {SYSTEM: "", OPENBLAS: "26", **SLEEPING}
_SHORT = 40
"""Tokens of a short prompt, as a turn of a conversation has them."""
_TIMES = {"prefill": "prompt", "short": "short prompt", "decode": "decoded"}
_PROCESSOR = "_processor"
_PER_WAY = [name + kind for name in _TIMES for kind in ("", _PROCESSOR)]


async def sample(child: Child, openblas: bool, tokens: int, decoded: int, number: int) -> dict[str, float]:
    """Operations per second, and the seconds of prompts and of decoded tokens: by the clock, and of processor time.

    Raises RuntimeError where the process has the other BLAS.
    """
    products = await child.ask(do="products")
    if products["openblas"] != openblas:
        raise RuntimeError(f"a process that should have OpenBLAS: {openblas}; it has: {products['openblas']}")
    found = {"flops": products["flops"]}
    for name, length in (("prefill", tokens), ("short", _SHORT)):
        before = await child.ask(do="processor")
        found[name] = await child.ask(do="prefill", tokens=length, seed=f"blas {number}")
        found[name + _PROCESSOR] = await child.ask(do="processor") - before
    steps = await child.ask(do="decode", agents=1, context=tokens, tokens=decoded)
    return {**found, "decode": steps["seconds"], "decode" + _PROCESSOR: steps["cpu_seconds"]}


async def measure(tokens: int, decoded: int, samples: int) -> dict[str, Any]:
    """All, in turns."""
    raw: dict[str, dict[str, list[float]]] = {way: {name: [] for name in ("flops", *_PER_WAY)} for way in WAYS}
    async with AsyncExitStack() as ending:
        processes = {
            way: await ending.enter_async_context(
                children.started(
                    *("benchmarks.engine_alone", str(DEMO)),
                    computes=way != SYSTEM,
                    environment={TIMEOUT: cycles} if cycles else {},
                )
            )
            for way, cycles in WAYS.items()
        }
        for number in range(samples + 1):
            for way, child in processes.items():
                found = await sample(child, way != SYSTEM, tokens, decoded, number)
                if number:
                    for name, value in found.items():
                        raw[way][name].append(value)
    times = {name: _times(raw[SYSTEM][name], raw[OPENBLAS][name], name) for name in ("flops", "prefill")}
    waiting = {
        way: {
            name: results.summary([b / a for a, b in zip(raw[OPENBLAS][name], raw[way][name], strict=True)])
            for name in _PER_WAY
        }
        for way in SLEEPING
    }
    summaries = {way: {name: results.summary(each) for name, each in of.items()} for way, of in raw.items()}
    return {"tokens": tokens, "decoded": decoded, **summaries, "times": times, "of_waiting": waiting}


def _times(system: list[float], openblas: list[float], name: str) -> dict[str, Any]:
    """How many times as fast with OpenBLAS, in each sample."""
    pairs = zip(system, openblas, strict=True)
    return results.summary([b / a if name == "flops" else a / b for a, b in pairs])


def tables(figures: dict[str, Any]) -> list[Table]:
    """All, how many times as fast OpenBLAS is, and what of that sleeping threads take."""
    rows = [
        (way, f"{figures[way]['flops']['median'] / 1e9:.1f}", milliseconds(figures[way]["prefill"])) for way in WAYS
    ]
    times = ("times as fast", *(spread(figures["times"][name], 1, "x") for name in ("flops", "prefill")))
    columns = ("BLAS", "products, GFLOP/s", f"{figures['tokens']:,} tokens computed")
    numbers = {"prefill": figures["tokens"], "short": _SHORT, "decode": figures["decoded"]}
    threads = [
        (
            f"{_TIMES[name]}, {numbers[name]:,} tokens{', processor time' if kind else ''}",
            milliseconds(figures[OPENBLAS][name + kind]),
            *(
                cell
                for way, of in figures["of_waiting"].items()
                for cell in (milliseconds(figures[way][name + kind]), spread(of[name + kind], 2, "x"))
            ),
        )
        for name in _TIMES
        for kind in ("", _PROCESSOR)
    ]
    heads = ("", OPENBLAS, *(head for way in SLEEPING for head in (way, "of OpenBLAS")))
    return [
        Table("OpenBLAS on a CPU (demo)", columns, [*rows, times]),
        Table("Idle threads of OpenBLAS that sleep after (demo)", heads, threads),
    ]


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write. Raises SystemExit where there is nothing to compare."""
    if not (found := preload_here()).environment:
        sys.exit(": ".join(filter(None, found[1:])) or "MLX uses no BLAS of the system here")
    figures = await measure(arguments.tokens, arguments.decoded, arguments.samples)
    results.conclude(arguments.output, figures, tables(figures))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--tokens", type=options.at_least(1), default=1000, help="of the prompt")
    found.add_argument("--decoded", type=options.at_least(1), default=32, help="tokens, behind the prompt")
    found.add_argument("--samples", type=options.at_least(1), default=5)
    found.add_argument("--output", default="blas-demo-cpu", help="name of the file in benchmarks/results")
    return found


if __name__ == "__main__":
    asyncio.run(main(parser().parse_args()))
