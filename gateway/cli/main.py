"""The `agentmem` command, and those of its commands that are other programs."""

import importlib
import importlib.util
import io
import os
import subprocess
import sys

import click

from gateway.cli.lazy import OTHER_PROGRAM, LazyGroup, needing_servers

BENCHMARKS = "benchmarks"
_COMMANDS = {
    "agents": "gateway.cli.agents:agents",
    "bench": "gateway.cli.main:bench",
    "chat": "gateway.cli.chat:chat",
    "cluster": "gateway.cli.cluster.command:cluster",
    "completion": "gateway.cli.completion:completion",
    "doctor": "gateway.cli.doctor.command:doctor",
    "keys": "gateway.cli.keys:keys",
    "models": "gateway.cli.models:models",
    "run": "gateway.cli.workflows.run:run",
    "store": "gateway.cli.main:store",
    "top": "gateway.cli.top.command:top",
    "up": "gateway.cli.up.command:up",
    "workflows": "gateway.cli.workflows.runs:workflows",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agentmem", prog_name="agentmem")
def main() -> None:
    """An inference server that gives every LLM agent a persistent memory: its KV cache.

    `agentmem up` starts the services, and most other commands call its gateway. `store` works on a data directory,
    `keys` on a file or a cluster's database, `cluster` on a cluster's database, `doctor` and `bench` on this machine.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # letters that the locale lacks, which would raise an error


@click.command(context_settings=OTHER_PROGRAM)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure this machine, by name (agentmem bench --help)."""
    # An installed package has no benchmarks: they also start the services and compare with other programs.
    if not _exists(f"{BENCHMARKS}.__main__"):
        click.echo("Error: the benchmarks come with a checkout of Agentmem: clone it, and run `make setup`", err=True)
        sys.exit(2)
    # In the place of this process, so that what ends it ends the benchmark, which then stops what it has started.
    os.execv(sys.executable, [sys.executable, "-m", BENCHMARKS, *(arguments or ("--help",))])


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package
        return False


@click.command(context_settings=OTHER_PROGRAM)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def store(arguments: tuple[str, ...]) -> None:
    """Check, weigh or recover a data directory (agentmem store --help)."""
    with needing_servers():
        importlib.import_module("pydantic_settings")
    # The services never import each other, so the store's own commands run as a process.
    command = [sys.executable, "-m", "cache_service.offline.commands", *(arguments or ("--help",))]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
