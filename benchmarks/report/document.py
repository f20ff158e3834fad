"""RESULTS.md as text, from the results as they lie in `benchmarks/results`."""

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.__main__ import NAMES, summary
from benchmarks.plots import Plot, drawable
from benchmarks.report.missed import reason
from benchmarks.tables import Claim, Table

HEAD = """# Results

Written by `agentmem bench report` from the files in `benchmarks/results`, which hold the device, the versions, the
commit and all raw samples. Times are medians with the smallest and the largest sample. Compare figures of one table,
which are of one run, and not seconds of different machines. Nothing here was measured on Apple hardware."""


@dataclass(frozen=True)
class Result:
    """One file: its stem, what it says of its making, and its figures."""

    name: str
    found: Mapping[str, Any]

    @property
    def benchmark(self) -> str:
        """The name of the benchmark, as `agentmem bench` has it."""
        return str(self.found["benchmark"])

    @property
    def module(self) -> ModuleType:
        """The benchmark's module."""
        return importlib.import_module(NAMES[self.benchmark])

    def tables(self) -> Sequence[Table]:
        """What it measured."""
        made: Sequence[Table] = self.module.tables(self.found["figures"])
        return made

    def claims(self) -> Sequence[Claim]:
        """What was to be reached."""
        made: Sequence[Claim] = self.module.claims(self.found["figures"]) if hasattr(self.module, "claims") else ()
        return made

    def plots(self) -> Sequence[Plot]:
        """Pictures of it."""
        return drawable(self.module.plots(self.found["figures"])) if hasattr(self.module, "plots") else ()

    def origin(self) -> str:
        """Where and how it was measured."""
        found = self.found
        versions = ", ".join(f"{name} {found[name]}" for name in ("mlx", "mlx-lm") if name in found)
        return (
            f"`{found['command']}` on {found['device']}, {found['system']}, {versions}, commit {found['commit']}, "
            f"{found['date']} ([samples](results/{self.name}.json))"
        )


def read(directory: Path) -> list[Result]:
    """All results of benchmarks that have tables, in the order of `NAMES`, then of the files."""
    found = [Result(path.stem, json.loads(path.read_text())) for path in sorted(directory.glob("*.json"))]
    known = [result for result in found if result.found.get("benchmark") in NAMES and hasattr(result.module, "tables")]
    return sorted(known, key=lambda result: list(NAMES).index(result.benchmark))


def document(results: Sequence[Result], compared: Table | None = None) -> str:
    """The whole text. `compared` sets our figures beside the paper's."""
    parts = [HEAD, "## Figures to reach", _claims(results)]
    if compared is not None:
        parts += ["## Beside the paper", compared.markdown()]
    for benchmark in dict.fromkeys(result.benchmark for result in results):
        parts += [f"## {benchmark}", summary(NAMES[benchmark])]
        for result in results:
            if result.benchmark == benchmark:
                parts += [f"### {result.name}", result.origin()]
                parts += [table.markdown() for table in result.tables()]
                parts += [f"![{plot.title}](plots/{result.name}-{plot.name}.png)" for plot in result.plots()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claims(results: Sequence[Result]) -> str:
    rows = [(result.name, *claim.row()) for result in results for claim in result.claims()]
    lines = ["| result | what | to reach | measured | |", "|---|---|---|---:|---|"]
    table = "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
    missed = [(result.name, claim) for result in results for claim in result.claims() if not claim.met]
    why = [f"- {name}, {claim.text}: {reason(name, claim.text) or 'not explained yet'}" for name, claim in missed]
    return "\n\n".join([table, *(["What was missed, and why:", "\n".join(why)] if why else [])])
