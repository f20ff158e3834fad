"""Command lines of benchmarks."""

import argparse
from collections.abc import Callable


def parser(docstring: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)


def at_least(least: int) -> Callable[[str], int]:

    def number(text: str) -> int:
        if (found := int(text)) < least:
            raise argparse.ArgumentTypeError(f"give {least} or more")
        return found

    return number
