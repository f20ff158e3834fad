"""The options that several benchmarks of a cluster have, said once: what each means, and its usual value."""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.options import at_least

_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "agents": {"type": at_least(1), "help": "for each node"},
    "slots": {"type": at_least(1), "default": 8, "help": "turns that a node computes at once"},
    "prefill": {"type": float, "default": 0.2, "help": "seconds to a turn's first token"},
    "answer": {"type": float, "default": 0.6, "help": "seconds from there to its end"},
    "seconds": {"type": float, "help": "how long each is measured"},
    "samples": {"type": at_least(1), "default": 3, "help": "rounds"},
    "database": {"default": "", "help": "libpq's URL of a PostgreSQL (default: one is started)"},
}


def add(parser: argparse.ArgumentParser, *usual: str, output: str, **own: Any) -> None:
    """Add options by their names: `usual` ones, and others whose value is the benchmark's `own` where none is given.

    `output` is the name of its file of figures.
    """
    for name in usual:
        parser.add_argument(f"--{name}", **_OPTIONS[name])
    for name, value in own.items():
        parser.add_argument(f"--{name}", **{**_OPTIONS[name], "default": value})
    parser.add_argument("--output", help=f"name of the file under benchmarks/results (default: {output})")
