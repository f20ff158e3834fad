"""The `agentmem` command."""

import click

from gateway.cli.lazy import LazyCommand, LazyGroup
from gateway.cli.text import replace_letters_that_the_locale_lacks

COMMANDS = {
    "agents": LazyCommand("gateway.cli.agents:agents", "Show, branch, move or erase agents."),
    "bench": LazyCommand("gateway.cli.bench:bench", "Measure this machine, by name (agentmem bench --help)."),
    "chat": LazyCommand("gateway.cli.chat:chat", "Talk with AGENT, line by line from standard input."),
    "doctor": LazyCommand(
        "gateway.cli.doctor.command:doctor",
        "Look whether this machine can run Agentmem well, and say what to do where it cannot.",
    ),
    "keys": LazyCommand("gateway.cli.keys:keys", "Make, list and revoke the keys that callers of a gateway show."),
    "models": LazyCommand("gateway.cli.models:models", "Show, load or unload models."),
    "run": LazyCommand(
        "gateway.cli.run.command:run", "Run the workflow in FILE, and show who speaks, what, and what memory gave."
    ),
    "store": LazyCommand(
        "gateway.cli.store:store", "Check, weigh or recover a data directory (agentmem store --help)."
    ),
    "top": LazyCommand(
        "gateway.cli.top.command:top",
        "Show what store, worker and gateway do: requests, tokens, times, hit rates, the pool, the disk, agents.",
    ),
    "up": LazyCommand("gateway.cli.up:up", "Start store, worker and gateway, and keep them running until Ctrl-C."),
    "workflows": LazyCommand("gateway.cli.workflows:workflows", "Show, cancel or erase runs of workflows."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agentmem", prog_name="agentmem")
def main() -> None:
    """A memory below the prompt for every LLM agent.

    `agentmem up` starts everything; the other commands talk to what it started, but for `store`, which looks after a
    data directory by itself, `keys`, which changes a file that the gateway reads, `doctor`, which looks at this
    machine, and `bench`, which measures it.
    """
    replace_letters_that_the_locale_lacks()


if __name__ == "__main__":
    main()
