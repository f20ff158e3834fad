"""The `agentmem` command."""

import click

from gateway.cli.up import up


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agentmem", prog_name="agentmem")
def main() -> None:
    """A memory below the prompt for every LLM agent.

    `agentmem up` starts everything; the other commands talk to what it started.
    """


main.add_command(up)

if __name__ == "__main__":
    main()
