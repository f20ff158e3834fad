"""Train all other architectures at a time on one GPU, for `agentmem bench quality --models OUTPUT_DIRECTORY`.

    python -m benchmarks.demo_model.train_all OUTPUT_DIRECTORY [--minutes 9] [--architectures gemma3_text …]

Each has a directory of its own there, and a log beside it. Asked again, it goes on with those that have not passed
every length, so that minutes can be had in pieces.
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


def command(output: Path, architecture: str, minutes: float, workers: int) -> list[str]:
    """The command that trains one, or goes on with it."""
    options = ["--architecture", architecture, "--longest", str(LONGEST), "--tokens-per-step", str(TOKENS_PER_STEP)]
    resume = ["--resume"] if (output / architecture / "training.json").exists() else []
    spent = ["--minutes", str(minutes), "--workers", str(workers)]
    return [sys.executable, "-m", "benchmarks.demo_model.train", str(output / architecture), *options, *spent, *resume]


def main(output: Path, architectures: Sequence[str], minutes: float) -> int:
    """Train them; 1 where one of the programs failed."""
    output.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in architectures if LONGEST not in passed(output / name)]
    workers = max(1, (os.cpu_count() or 2) // max(1, len(wanted)) - 1)
    running = {}
    for name in wanted:
        with (output / f"{name}.log").open("a") as log:
            running[name] = subprocess.Popen(command(output, name, minutes, workers), stdout=log, stderr=log)
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
    given = parser.parse_args()
    sys.exit(main(given.output, given.architectures, given.minutes))
