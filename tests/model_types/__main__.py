"""Every model type of the installed mlx-lm: whether it works, or why it is refused, as a page of the documentation.

    python -m tests.model_types [TYPE …] [--processes 2] [--limit SECONDS]

Of each type a small random model is made, from a config that tests/model_types/configs.py has. One that its config.json
lets pass is loaded, and two texts are taken through the engine: decoded alone, together, hot, after a restart from
files, and from a partial match. Each log-probability must be that of the whole text computed at once, and that of
mlx-lm's own caches over the same K and V.

Without TYPE all types are examined, and docs/reference/model-types.md is written; a test compares it. Exit status 1
where a type answers wrongly, crashes, hangs, or is not known to the census yet.
"""

import argparse
import asyncio
import os
import sys

from benchmarks import options
from benchmarks.tables import Table, show
from tests.model_types import installed, page
from tests.model_types.running import examined

SECONDS = 120.0


def main(arguments: argparse.Namespace) -> int:
    """Examine, print, write the page if all types were examined; the exit status."""
    names = arguments.types or installed.types()

    def say(line: page.Line) -> None:
        print(f"{line.name}: {'works' if line.works else line.refused or '; '.join(line.faults)}", file=sys.stderr)

    lines = asyncio.run(examined(names, arguments.processes, arguments.limit, say=say))
    show(page.tables(lines, installed.aliases()))
    if arguments.types:
        show([differences(lines)])
    else:
        section = page.section(lines, installed.aliases(), installed.version())
        page.PAGE.write_text(page.replaced(page.PAGE.read_text(), section))
        print(f"written to {page.PAGE}")
    return int(any(line.faults for line in lines))


def differences(lines: list[page.Line]) -> Table:
    ways = list(dict.fromkeys(way for line in lines for way in line.differences))
    rows = [
        (line.name, *(f"{line.differences[way]:.0e}" if way in line.differences else "–" for way in ways))
        for line in lines
    ]
    return Table("Log-probabilities differ by", ("type", *ways), rows)


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__)
    found.add_argument("types", nargs="*", choices=[*installed.types(), []], metavar="TYPE", help="(default: all)")
    found.add_argument("--processes", type=options.at_least(1), default=min(2, os.cpu_count() or 1), help="at a time")
    found.add_argument("--limit", type=float, default=SECONDS, help=f"seconds for a type (default: {SECONDS:g})")
    return found


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
