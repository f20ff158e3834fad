"""Command lines of benchmarks."""

import argparse
from collections.abc import Callable


def parser(docstring: str | None, output: str = "") -> argparse.ArgumentParser:
    """Return a parser; of --output `output` is the default, or "" where the benchmark fills in words in capitals."""
    found = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    if output:
        help = f"name of the file under benchmarks/results (default: {output})"
        found.add_argument("--output", default=output if output.islower() else "", help=help)
    return found


def at_least(least: int) -> Callable[[str], int]:

    def number(text: str) -> int:
        if (found := int(text)) < least:
            raise argparse.ArgumentTypeError(f"give {least} or more")
        return found

    return number
