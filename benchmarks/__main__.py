"""`agentmem bench NAME …`, which is `python -m benchmarks NAME …`: every benchmark by its name, with its own options.

A benchmark is a module that runs as a program, whose docstring begins with one line of what it measures.
"""

import ast
import importlib.util
import os
import runpy
import signal
import sys
from pathlib import Path

from agentmem.process import logs
from gateway.cli.up.openblas import preload_here

NAMES = {
    "at-rest": "benchmarks.at_rest",
    "commits": "benchmarks.cluster.commits",
    "drill": "benchmarks.cluster.drill",
    "engine": "benchmarks.engine",
    "failover": "benchmarks.cluster.failover",
    "memory": "benchmarks.memory",
    "page": "benchmarks.page",
    "peers": "benchmarks.peers.command",
    "quality": "benchmarks.quality.command",
    "report": "benchmarks.report",
    "restart": "benchmarks.restart",
    "speculation": "benchmarks.speculation",
    "store": "benchmarks.store.command",
    "swap": "benchmarks.swap",
    "ttft": "benchmarks.ttft.command",
    "work": "benchmarks.work",
    "working-memory": "benchmarks.working_memory.command",
}


IN_PROCESS = frozenset({"engine", "quality"})
"""These compute in their own process, which gets the BLAS of a worker."""


def summary(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return (ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or "").partition("\n")[0]


def overview() -> str:
    rows = [f"  {name:<15} {summary(module)}" for name, module in NAMES.items()]
    return "\n".join(
        [
            "Usage: agentmem bench NAME [OPTIONS]",
            "",
            "  Measures, prints a table and writes all samples to benchmarks/results. NAME --help: its options.",
            "",
            *rows,
        ]
    )


def main(arguments: list[str]) -> int:
    name, *rest = arguments or ["list"]
    if name in ("list", "-h", "--help"):
        print(overview())
        return 0
    if name not in NAMES:
        print(f"there is no benchmark {name!r}; the names are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if name in IN_PROCESS and (preloaded := preload_here().environment):
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *arguments], {**os.environ, **preloaded})
    sys.argv = [f"agentmem bench {name}", *rest]
    # Who is stopped stops what it has started: also by SIGTERM, and as a shell's background job, which ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    try:
        runpy.run_module(NAMES[name], run_name="__main__", alter_sys=False)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError as error:  # `agentmem bench --help | head -1`
        logs.failed(sys.stdout, error)
        status = 1
    sys.exit(status)
