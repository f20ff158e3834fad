"""Writes RESULTS.md, and the tables that README and docs quote, from what the other benchmarks wrote.

    agentmem bench report

Measures nothing. A quoted table stands between `<!-- results NAME TITLE -->` and `<!-- end -->`.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import options, results
from benchmarks.__main__ import NAMES, summary
from benchmarks.tables import Table

HERE = Path(__file__).parent
QUOTING = (HERE.parent / "README.md", HERE.parent / "docs" / "results" / "index.md")
_QUOTED = re.compile(r"(<!-- results (?P<name>\S+) (?P<title>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
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
        return str(self.found["benchmark"])

    def tables(self) -> Sequence[Table]:
        return [Table(**table) for table in self.found["tables"]]

    def origin(self) -> str:
        found = self.found
        where = f"{found['device']}, mlx {found['mlx']}, commit {found['commit']}, {found['date']}"
        return f"`{found['command']}` on {where} ([samples](results/{self.name}.json))"

    def shown(self, said: set[str]) -> list[str]:
        """Return the tables without the sentences of notes that were `said`."""
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


def document(found: Sequence[Result]) -> str:
    parts = [HEAD]
    for benchmark in dict.fromkeys(result.benchmark for result in found):
        said: set[str] = set()
        parts += [f"## {benchmark}", summary(NAMES[benchmark]) if benchmark in NAMES else GONE]
        for result in found:
            if result.benchmark == benchmark:
                parts += [f"### {result.name}", result.origin(), *result.shown(said)]
    return "\n\n".join(parts) + "\n"


def quoting(page: str, found: Sequence[Result]) -> str:
    """Replace a page's quoted tables. Raises KeyError."""
    tables = {(result.name, table.title): table for result in found for table in result.tables()}

    def quoted(match: re.Match[str]) -> str:
        table = tables[match["name"], match["title"]]
        return f"{match[1]}\n{table.markdown().partition(chr(10) * 2)[2]}\n\n{match[4]}"

    return _QUOTED.sub(quoted, page)


def main() -> None:
    options.parser(__doc__).parse_args()
    found = read(results.RESULTS)
    try:
        pages = {path: quoting(path.read_text(), found) for path in QUOTING}
    except KeyError as error:
        name, title = error.args[0]
        sys.exit(f"a page quotes the table {title!r} of {name}, which has none of this title: nothing is written")
    (HERE / "RESULTS.md").write_text(document(found))
    for path, page in pages.items():
        path.write_text(page)
    print(f"written: {HERE / 'RESULTS.md'}, and the tables of {len(pages)} pages")


if __name__ == "__main__":
    main()
