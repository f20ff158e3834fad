"""A series of benchmarks, one after the other, and then the report.

    agentmem bench all [--only NAME …] [--directory DIRECTORY] [--limit SECONDS]

On a CPU with the demo model; on a GPU with random weights of Llama 3.1 8B's geometry, which are written to --directory.
On two cores it takes more than an hour. A benchmark that fails or takes too long leaves its result as it was.
"""

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import options
from inference_service.process import keep_private

GEOMETRY = "llama-3.1-8b"
_SHORT = "16 32 64 128 256 512 1024"
CPU = (
    "memory",
    "store",
    "ttft",
    "restart",
    "at-rest",
    f"ttft --lengths {_SHORT} --samples 9 --output ttft-short-demo-cpu",
)
GPU = (
    "ttft --model {model} --samples 2 --lengths 1000 4000 16000 32000",
    f"ttft --model {{model}} --lengths {_SHORT} --samples 7 --output ttft-short-llama-3.1-8b-gpu",
    "restart --model {model} --samples 2",
    "quality",
)


def commands(backend: str, directory: Path, only: Sequence[str]) -> list[list[str]]:
    """The arguments of `agentmem bench`, in order."""
    model = f"{GEOMETRY}={shlex.quote(str(directory / GEOMETRY))}"
    lines = [shlex.split(line.format(model=model)) for line in (GPU if backend == "gpu" else CPU)]
    if unknown := set(only) - {line[0] for line in lines}:
        known = ", ".join(line[0] for line in lines)
        raise ValueError(f"no part of the series on a {backend}: {', '.join(sorted(unknown))}; its parts are: {known}")
    return [line for line in lines if not only or line[0] in only]


def run(command: Sequence[str], limit: float) -> int:
    """Run a module's command; its exit status, 124 after `limit` seconds."""
    with subprocess.Popen([sys.executable, "-m", *command], start_new_session=True) as process:
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def main(given: argparse.Namespace) -> int:
    keep_private()  # One place for all processes: what a GPU compiles once, it does not compile again.
    # In a process of its own, because a GPU that this one has opened has less memory for the others.
    asked = [sys.executable, "-c", "from benchmarks.results import backend; print(backend())"]
    backend = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    try:
        wanted = commands(backend, given.directory, given.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if backend == "gpu" and not (given.directory / GEOMETRY / "config.json").exists():
        run(["benchmarks.random_models", GEOMETRY, str(given.directory / GEOMETRY)], given.limit)
    status = [(shlex.join(line), run(["benchmarks", *line], given.limit)) for line in wanted]
    status.append(("report", run(["benchmarks", "report"], given.limit)))
    for line, code in status:
        print(f"{'ok' if code == 0 else f'ended with {code}':<15} {line}")
    return int(any(code for _, code in status))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__)
    found.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the benchmarks")
    cache = Path("~/.cache/agentmem/models").expanduser()
    found.add_argument("--directory", type=Path, default=cache, help=f"of the random model (default: {cache})")
    found.add_argument("--limit", type=options.at_least(1), default=3600, help="seconds that one benchmark may take")
    return found


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
