"""What OpenBLAS does for a worker on Linux without a GPU: products of matrices, a prefill and decode steps, without it,
with it, and with threads that sleep soon.

    agentmem bench blas [--tokens 1000] [--decoded 32] [--samples 5]

MLX calls the BLAS that the system's libblas.so.3 is; `agentmem up` preloads OpenBLAS into the worker, and has its idle
threads sleep after 2^16 cycles instead of 2^26. Three processes that differ in this alone, and take turns: float32
products of 512 x 512 matrices, as `agentmem doctor` times them, and the engine computing a prompt of the demo model and
decoding behind it, which is not products alone; processor time is that of all threads. The first sample is a warm-up.
"""

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

from benchmarks import children, options, results
from benchmarks.children import Child
from benchmarks.models import DEMO
from benchmarks.tables import Table, milliseconds, show, spread
from gateway.cli.up.openblas import TIMEOUT, preload_here

SYSTEM, OPENBLAS, SLEEPY = "system", "OpenBLAS", "OpenBLAS, idle threads sleep"
WAYS = {SYSTEM: False, OPENBLAS: True, SLEEPY: True}
"""Whether the process gets the preload."""
_DEFAULT_CYCLES = "26"
_WHAT = ("flops", "prefill", "prefill_processor", "decode", "decode_processor")


async def sample(child: Child, openblas: bool, tokens: int, decoded: int, number: int) -> dict[str, float]:
    """Operations per second, and the seconds of a prompt and of decoded tokens: by the clock, and of processor time.

    Raises RuntimeError where the process has the other BLAS.
    """
    found = await child.ask(do="products")
    if found["openblas"] != openblas:
        raise RuntimeError(f"a process that should have OpenBLAS: {openblas}; it has: {found['openblas']}")
    before = await child.ask(do="processor")
    prefill = await child.ask(do="prefill", tokens=tokens, seed=f"blas {number}")
    after = await child.ask(do="processor")
    step = await child.ask(do="decode", agents=1, context=tokens, tokens=decoded)
    of_decoding = step["seconds"], step["cpu_seconds"]
    return dict(zip(_WHAT, (found["flops"], prefill, after - before, *of_decoding), strict=True))


async def measure(tokens: int, decoded: int, samples: int) -> dict[str, Any]:
    """All, in turns."""
    raw: dict[str, dict[str, list[float]]] = {way: {name: [] for name in _WHAT} for way in WAYS}
    async with AsyncExitStack() as ending:
        processes = {
            way: await ending.enter_async_context(
                children.started(
                    *("benchmarks.engine_alone", str(DEMO)),
                    computes=openblas,
                    environment={TIMEOUT: _DEFAULT_CYCLES} if way == OPENBLAS else {},
                )
            )
            for way, openblas in WAYS.items()
        }
        for number in range(samples + 1):
            for way, child in processes.items():
                found = await sample(child, WAYS[way], tokens, decoded, number)
                if number:
                    for name, value in found.items():
                        raw[way][name].append(value)
    times = {name: _times(raw[SYSTEM][name], raw[OPENBLAS][name], name) for name in ("flops", "prefill")}
    less = {
        name: results.summary([b / a for a, b in zip(raw[OPENBLAS][name], raw[SLEEPY][name], strict=True)])
        for name in _WHAT[1:]
    }
    summaries = {way: {name: results.summary(each) for name, each in of.items()} for way, of in raw.items()}
    return {"tokens": tokens, "decoded": decoded, **summaries, "times": times, "of_waiting": less}


def _times(system: list[float], openblas: list[float], name: str) -> dict[str, Any]:
    """How many times as fast with OpenBLAS, in each sample."""
    pairs = zip(system, openblas, strict=True)
    return results.summary([b / a if name == "flops" else a / b for a, b in pairs])


def tables(figures: dict[str, Any]) -> list[Table]:
    """All, how many times as fast OpenBLAS is, and what sleeping threads save."""
    ways = [way for way in WAYS if way in figures]
    rows = [
        (way, f"{figures[way]['flops']['median'] / 1e9:.1f}", milliseconds(figures[way]["prefill"])) for way in ways
    ]
    times = ("times as fast", *(spread(figures["times"][name], 1, "x") for name in ("flops", "prefill")))
    columns = ("BLAS", "products, GFLOP/s", f"{figures['tokens']:,} tokens computed")
    found = [Table("OpenBLAS on a CPU (demo)", columns, [*rows, times])]
    if SLEEPY in figures:
        decoded = f"{figures['decoded']} tokens decoded"
        labels = ("prompt", "prompt, processor time", decoded, f"{decoded}, processor time")
        threads = [
            (label, *(milliseconds(figures[way][name]) for way in (OPENBLAS, SLEEPY)), spread(of, 2, "x"))
            for label, (name, of) in zip(labels, figures["of_waiting"].items(), strict=True)
        ]
        found.append(Table("Idle threads of OpenBLAS (demo)", ("", OPENBLAS, SLEEPY, "of that"), threads))
    return found


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write. Raises SystemExit where there is nothing to compare."""
    if not (found := preload_here()).environment:
        sys.exit(": ".join(filter(None, found[1:])) or "MLX uses no BLAS of the system here")
    figures = await measure(arguments.tokens, arguments.decoded, arguments.samples)
    results.write(arguments.output, figures)
    show(tables(figures))


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
