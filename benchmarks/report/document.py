"""RESULTS.md as text, from the results as they lie in `benchmarks/results`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.__main__ import NAMES, summary
from benchmarks.tables import Table

HEAD = """# Results

Written by `agentmem bench report` from the files in `benchmarks/results`, which hold the system, all versions and all
raw samples. Times are medians with the smallest and the largest sample. Compare figures of one table,
which are of one run, and not seconds of different machines. Nothing here was measured on Apple hardware."""
_SENTENCE = re.compile(r"(?<=\.) ")
GONE = "Measured at the commit that each result names. This benchmark is no longer part of the repository."


@dataclass(frozen=True)
class Result:
    name: str
    found: Mapping[str, Any]

    @property
    def benchmark(self) -> str:
        """The name of the benchmark, as `agentmem bench` has it."""
        return str(self.found["benchmark"])

    def tables(self) -> Sequence[Table]:
        return [Table(**table) for table in self.found["tables"]]

    def origin(self) -> str:
        found = self.found
        where = f"{found['device']}, mlx {found['mlx']}, commit {found['commit']}, {found['date']}"
        return f"`{found['command']}` on {where} ([samples](results/{self.name}.json))"

    def shown(self, said: set[str]) -> list[str]:
        """Sentences of notes that were `said` before are left out."""
        found = []
        for table in self.tables():
            new = [each for each in _SENTENCE.split(table.note) if each not in said]
            said.update(new)
            found.append(replace(table, note=" ".join(new)).markdown())
        return found


def read(directory: Path) -> list[Result]:
    """Return all results in the order of `NAMES`, then of benchmarks that are gone."""
    found = [Result(path.stem, json.loads(path.read_text())) for path in sorted(directory.glob("*.json"))]
    names = [*NAMES, *sorted({result.benchmark for result in found} - NAMES.keys())]
    return sorted(found, key=lambda result: names.index(result.benchmark))


def document(results: Sequence[Result]) -> str:
    parts = [HEAD]
    for benchmark in dict.fromkeys(result.benchmark for result in results):
        said: set[str] = set()
        parts += [f"## {benchmark}", summary(NAMES[benchmark]) if benchmark in NAMES else GONE]
        for result in results:
            if result.benchmark == benchmark:
                parts += [f"### {result.name}", result.origin(), *result.shown(said)]
    return "\n\n".join(parts) + "\n"
