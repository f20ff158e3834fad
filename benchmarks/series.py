"""A series of benchmarks, one after the other, and then the report.

    agentmem bench all [--only NAME …] [--directory DIRECTORY] [--models DIRECTORY] [--limit SECONDS] [--gpus 0 1 …]

On a CPU with the demo model; on a GPU with a model of Llama 3.1 8B's geometry and random weights, which is written to
--directory if it is not there. Nothing else should run meanwhile; on two cores it takes more than an hour. A benchmark
that fails, or takes longer than --limit, leaves its result as it was, and the others go on. The exit status is 1 where
one failed. Without --models, architectures is the demo model alone, and not all of them. With --gpus there
run as many benchmarks at a time, each on one of them: where there are cores for that, 16 to each say.
"""

import argparse
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks import options
from inference_service.process import keep_private

GEOMETRY = "llama-3.1-8b"
CPU = (
    "memory",
    "store",
    "ttft",
    "restart",
    "start",
    "at-rest",
    "break-even --samples 9",
    "restoring",
    "quality",
    "architectures{architectures}",
)
GPU = (
    "restoring",
    "ttft --model {model} --samples 2 --lengths 1000 4000 16000 32000",
    "break-even --model {model}",
    "restart --model {model} --samples 2",
    "memory",
    "quality",
    "architectures{architectures}",
)
_POLL = 0.5
_PATIENCE = 30.0
"""Seconds for a benchmark to stop what it has started."""


def commands(backend: str, directory: Path, architectures: Path | None, only: Sequence[str]) -> list[list[str]]:
    """The arguments of `agentmem bench`, in order; those that are named by `only`, if anything is."""
    filled = {
        "model": f"{GEOMETRY}={shlex.quote(str(directory / GEOMETRY))}",
        # With the demo model alone it is no result to replace that of all architectures.
        "architectures": (
            f" --models {shlex.quote(str(architectures))}"
            if architectures
            else f" --output architectures-demo-{backend}"
        ),
    }
    lines = [shlex.split(line.format(**filled)) for line in (GPU if backend == "gpu" else CPU)]
    if unknown := set(only) - {line[0] for line in lines}:
        known = ", ".join(line[0] for line in lines)
        raise ValueError(f"no part of the series on a {backend}: {', '.join(sorted(unknown))}; its parts are: {known}")
    return [line for line in lines if not only or line[0] in only]


class Ended(NamedTuple):
    """A benchmark's command line, its exit status, and how long it took."""

    line: str
    status: int
    seconds: float


def run(
    command: Sequence[str],
    limit: float,
    environment: Mapping[str, str] = os.environ,
    stopped: threading.Event | None = None,
) -> int:
    """Run a module's command; its exit status, or 124 where it was stopped. Interrupted first, as by Ctrl-C."""
    program = [sys.executable, "-m", *command]
    with subprocess.Popen(program, start_new_session=True, env=environment) as process:
        try:
            until = time.monotonic() + limit
            while time.monotonic() < until and not (stopped and stopped.is_set()):
                try:
                    return process.wait(min(_POLL, limit))
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        return 124


def take_turns(wanted: Sequence[Sequence[str]], gpus: Sequence[str], limit: float) -> list[Ended]:
    """Run benchmarks in their order, each on the next GPU that is free; without any, one after the other."""
    free: queue.SimpleQueue[str] = queue.SimpleQueue()
    for gpu in gpus or [""]:
        free.put(gpu)
    stopped = threading.Event()

    def one(command: Sequence[str]) -> Ended:
        gpu, started = free.get(), time.monotonic()
        try:
            status = run(["benchmarks", *command], limit, _environment(gpu), stopped)
        finally:
            free.put(gpu)
        return Ended(shlex.join(command), status, time.monotonic() - started)

    with ThreadPoolExecutor(max(1, len(gpus))) as threads:
        try:
            return list(threads.map(one, wanted))
        except BaseException:
            stopped.set()
            threads.shutdown(cancel_futures=True)
            raise


def _environment(gpu: str) -> dict[str, str]:
    """In which a benchmark has that GPU, and a place of its own for what MLX compiles: it writes files in two steps."""
    if not gpu:
        return {**os.environ}
    place = Path(tempfile.gettempdir()) / f"gpu-{gpu}"
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)  # Raises where it is another user's, who could have put libraries there that MLX would load.
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "TMPDIR": str(place)}


def main(given: argparse.Namespace) -> int:
    """All of it; 1 where something failed."""
    keep_private()  # One place for all processes: what a GPU compiles once, it does not compile again.
    # In a process of its own, because a GPU that this one has opened has less memory for the others.
    told = subprocess.run(
        [sys.executable, "-c", "from benchmarks.results import backend; print(backend())"],
        capture_output=True,
        text=True,
        check=True,
    )
    backend = told.stdout.strip()
    try:
        wanted = commands(backend, given.directory, given.models, given.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.gpus and (backend == "cpu" or len(set(given.gpus)) < len(given.gpus)):
        print("--gpus: name GPUs that MLX computes on, each once", file=sys.stderr)
        return 2
    if backend == "gpu" and not (given.directory / GEOMETRY / "config.json").exists():
        run(["benchmarks.random_models", GEOMETRY, str(given.directory / GEOMETRY)], given.limit)
    ended = take_turns(wanted, given.gpus, given.limit)
    status = run(["benchmarks", "report"], given.limit)
    for name, code, seconds in ended:
        Console().print(f"{'ok' if code == 0 else f'ended with {code}':<15} {seconds:6.0f} s  {name}", highlight=False)
    return 1 if status or any(code for _, code, _ in ended) else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the benchmarks")
    cache = Path("~/.cache/agentmem/models").expanduser()
    found.add_argument("--directory", type=Path, default=cache, help=f"of the random model (default: {cache})")
    found.add_argument("--models", type=Path, help="a directory with a directory for each further architecture's model")
    found.add_argument("--gpus", nargs="+", default=[], metavar="NUMBER", help="that take turns (default: the first)")
    found.add_argument("--limit", type=options.at_least(1), default=3600, help="seconds that one benchmark may take")
    return found


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
