"""Train all other architectures at a time, for `agentmem bench architectures --models OUTPUT_DIRECTORY`.

    python -m benchmarks.demo_model.train_all OUTPUT_DIRECTORY [--minutes 9] [--architectures gpt_oss …] [--gpus 0 1]

Each has a directory of its own there, and a log beside it. Asked again, it goes on with those that have not passed
every length, so that minutes can be had in pieces. With --gpus they take turns on several.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.demo_model.configurations import CONFIGURATIONS

LONGEST = 4096
TOKENS_PER_STEP = 16_384


def passed(directory: Path) -> list[int]:
    """The lengths at which a model has learned to recall; none where there is no model."""
    facts = directory / "training.json"
    return sorted(map(int, json.loads(facts.read_text())["minute_passed_by_length"])) if facts.exists() else []


def place(number: int, gpus: Sequence[str]) -> dict[str, str]:
    """What of its environment gives a program its GPU: those of `gpus` in turns, and without them what all see."""
    return {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}


def command(output: Path, architecture: str, minutes: float, workers: int) -> list[str]:
    """The command that trains one, or goes on with it."""
    options = ["--architecture", architecture, "--longest", str(LONGEST), "--tokens-per-step", str(TOKENS_PER_STEP)]
    resume = ["--resume"] if (output / architecture / "training.json").exists() else []
    spent = ["--minutes", str(minutes), "--workers", str(workers)]
    return [sys.executable, "-m", "benchmarks.demo_model.train", str(output / architecture), *options, *spent, *resume]


def main(output: Path, architectures: Sequence[str], minutes: float, gpus: Sequence[str] = ()) -> int:
    """Train them; 1 where one of the programs failed."""
    output.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in architectures if LONGEST not in passed(output / name)]
    workers = max(1, (os.cpu_count() or 2) // max(1, len(wanted)) - 1)
    running = {}
    for number, name in enumerate(wanted):
        with (output / f"{name}.log").open("a") as log:
            program, environment = command(output, name, minutes, workers), {**os.environ, **place(number, gpus)}
            running[name] = subprocess.Popen(program, stdout=log, stderr=log, env=environment)
    failed = [name for name, process in running.items() if process.wait()]
    for name in architectures:
        lines = (output / f"{name}.log").read_text().splitlines() if (output / f"{name}.log").exists() else []
        print(f"{name}: passed {passed(output / name)}; {lines[-1] if lines else 'nothing to do'}")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0, help="of each")
    parser.add_argument("--architectures", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    parser.add_argument("--gpus", nargs="+", default=[], metavar="NUMBER", help="for each architecture in turn")
    given = parser.parse_args()
    sys.exit(main(given.output, given.architectures, given.minutes, given.gpus))
