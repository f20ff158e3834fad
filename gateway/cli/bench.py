"""`agentmem bench`: the benchmarks, in a process of their own.

They are no part of an installed package, since they also start the services and compare with other programs: a checkout
has them, and there the editable install finds them from everywhere.
"""

import importlib.util
import os
import sys

import click

from gateway.cli.mistakes import Mistake

PACKAGE = "benchmarks"


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure this machine, by name (agentmem bench --help)."""
    if not _is_there(f"{PACKAGE}.__main__"):
        raise Mistake("the benchmarks come with a checkout of Agentmem: clone it, and run `make setup` there")
    # In the place of this process, so that who ends it ends the benchmark, which then stops what it has started.
    os.execv(sys.executable, [sys.executable, "-m", PACKAGE, *(arguments or ("--help",))])


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package itself
        return False
