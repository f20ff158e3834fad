"""`agentmem store`: the cache store's own offline commands, in a process of their own.

The services never import each other, so this knows no more of the store than the name of the module to run.
"""

import subprocess
import sys

import click

MODULE = "cache_service.offline.commands"


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def store(arguments: tuple[str, ...]) -> None:
    """Check, weigh or recover a data directory (agentmem store --help)."""
    sys.exit(subprocess.run([sys.executable, "-m", MODULE, *(arguments or ("--help",))], check=False).returncode)
