"""The `agentmem` command."""

import click

from gateway.cli.agents import agents
from gateway.cli.chat import chat
from gateway.cli.doctor.command import doctor
from gateway.cli.keys import keys
from gateway.cli.models import models
from gateway.cli.run.command import run
from gateway.cli.store import store
from gateway.cli.text import replace_letters_that_the_locale_lacks
from gateway.cli.top.command import top
from gateway.cli.transfers import export_agent, import_agent
from gateway.cli.up import up
from gateway.cli.workflows import workflows


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agentmem", prog_name="agentmem")
def main() -> None:
    """A memory below the prompt for every LLM agent.

    `agentmem up` starts everything; the other commands talk to what it started, but for `store`, which looks after a
    data directory by itself, `keys`, which changes a file that the gateway reads, and `doctor`, which looks at this
    machine.
    """
    replace_letters_that_the_locale_lacks()


for command in (export_agent, import_agent):
    agents.add_command(command)
for command in (up, top, agents, chat, models, run, workflows, keys, store, doctor):
    main.add_command(command)

if __name__ == "__main__":
    main()
