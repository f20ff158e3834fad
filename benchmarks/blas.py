"""What OpenBLAS does for a worker on Linux without a GPU: products of matrices and a prefill, without and with it.

    agentmem bench blas [--tokens 1000] [--samples 5]

MLX calls the BLAS that the system's libblas.so.3 is; `agentmem up` preloads OpenBLAS into the worker. Two processes
that differ in this alone, and take turns: float32 products of 512 x 512 matrices, as `agentmem doctor` times them, and
the engine computing a prompt of the demo model, which is not products alone. The first sample is a warm-up.
"""

import argparse
import asyncio
import sys
from typing import Any

from benchmarks import children, options, results
from benchmarks.children import Child
from benchmarks.models import DEMO
from benchmarks.tables import Table, milliseconds, show, spread
from gateway.cli.up.openblas import preload_here

WAYS = {"system": False, "OpenBLAS": True}
"""Whether the process gets the preload."""


async def sample(child: Child, openblas: bool, tokens: int, number: int) -> dict[str, float]:
    """Operations per second and the prompt's seconds. Raises RuntimeError where the process has the other BLAS."""
    found = await child.ask(do="products")
    if found["openblas"] != openblas:
        raise RuntimeError(f"a process that should have OpenBLAS: {openblas}; it has: {found['openblas']}")
    return {"flops": found["flops"], "prefill": await child.ask(do="prefill", tokens=tokens, seed=f"blas {number}")}


async def measure(tokens: int, samples: int) -> dict[str, Any]:
    """Both, in turns."""
    raw: dict[str, dict[str, list[float]]] = {way: {"flops": [], "prefill": []} for way in WAYS}
    async with (
        children.started("benchmarks.engine_alone", str(DEMO), computes=False) as system,
        children.started("benchmarks.engine_alone", str(DEMO)) as openblas,
    ):
        for number in range(samples + 1):
            for way, child in zip(WAYS, (system, openblas), strict=True):
                found = await sample(child, WAYS[way], tokens, number)
                if number:
                    for name, value in found.items():
                        raw[way][name].append(value)
    times = {name: _times(raw["system"][name], raw["OpenBLAS"][name], name) for name in ("flops", "prefill")}
    summaries = {way: {name: results.summary(each) for name, each in of.items()} for way, of in raw.items()}
    return {"tokens": tokens, **summaries, "times": times}


def _times(system: list[float], openblas: list[float], name: str) -> dict[str, Any]:
    """How many times as fast with OpenBLAS, in each sample."""
    pairs = zip(system, openblas, strict=True)
    return results.summary([b / a if name == "flops" else a / b for a, b in pairs])


def tables(figures: dict[str, Any]) -> list[Table]:
    """Both, and how many times as fast OpenBLAS is."""
    rows = [
        (way, f"{figures[way]['flops']['median'] / 1e9:.1f}", milliseconds(figures[way]["prefill"])) for way in WAYS
    ]
    times = ("times as fast", *(spread(figures["times"][name], 1, "x") for name in ("flops", "prefill")))
    columns = ("BLAS", "products, GFLOP/s", f"{figures['tokens']:,} tokens computed")
    return [Table("OpenBLAS on a CPU (demo)", columns, [*rows, times])]


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write. Raises SystemExit where there is nothing to compare."""
    if not (found := preload_here()).environment:
        sys.exit(": ".join(filter(None, found[1:])) or "MLX uses no BLAS of the system here")
    figures = await measure(arguments.tokens, arguments.samples)
    results.write(arguments.output, figures)
    show(tables(figures))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--tokens", type=options.at_least(1), default=1000, help="of the prompt")
    found.add_argument("--samples", type=options.at_least(1), default=5)
    found.add_argument("--output", default="blas-demo-cpu", help="name of the file in benchmarks/results")
    return found


if __name__ == "__main__":
    asyncio.run(main(parser().parse_args()))
