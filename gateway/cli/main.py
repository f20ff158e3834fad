"""The `agentmem` command: a table of all commands."""

import io
import sys

import click

from agentmem.distribution import NAME
from gateway.cli.groups import Lazy, program
from gateway.cli.habits import Habits
from gateway.rings import of_rings


@click.group(
    cls=Habits,
    context_settings={"help_option_names": ["-h", "--help"]},
    commands=[
        Lazy("agents", "gateway.cli.agents:agents", "Show, branch, move or delete agents."),
        Lazy("bench", "gateway.cli.bench.command:bench", "Measure this machine and a model, in a minute."),
        Lazy("chat", "gateway.cli.chat:chat", "Chat with an agent, line by line from standard input."),
        Lazy("doctor", "gateway.cli.doctor:doctor", "Look what of this machine or its settings is wrong."),
        Lazy("keys", "gateway.cli.keys:keys", "Make, list and revoke API keys, which callers of a gateway send."),
        Lazy(
            "launch", "gateway.cli.launch.command:launch", "Run a coding agent (Claude Code, Codex, …) on this server."
        ),
        Lazy("models", "gateway.cli.models:models", "Show, load, unload, search or pull models."),
        program(
            "store",
            "Check or recover a data directory, show its disk usage (agentmem store --help).",
            "cache_service.offline.commands",
            needs=("pydantic_settings",),
        ),
        Lazy("top", "gateway.cli.top:top", "Show what gateway, worker and store do."),
        Lazy("up", "gateway.cli.up.command:up", "Start store, worker and gateway, and keep them running until Ctrl-C."),
        *(command for ring in of_rings("cli") for command in ring.COMMANDS),
    ],
)
@click.version_option(package_name=NAME, prog_name="agentmem")
def main() -> None:
    """An inference server that gives every LLM agent a persistent memory: its KV cache.

    `agentmem up` starts the services, and most other commands call its gateway. `store` works on a data directory,
    `keys` on a file or a cluster's database, `cluster` on a cluster's database, `doctor` and `bench` on this machine.
    `serve`, `pull`, `list`, `ps`, `show`, `search`, `stop NAME` and `run NAME` are understood as Ollama's.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # letters that the locale lacks would raise an error


if __name__ == "__main__":
    main()
