"""`agentmem bench`."""

from typing import Any

import click
from rich.text import Text

from agentmem.addresses import is_loopback, parse_address
from agentmem.console import console
from agentmem.words import printable
from gateway.cli.bench.measuring import measure
from gateway.cli.bench.report import figures, markdown
from gateway.cli.client import Client, client_options
from gateway.cli.groups import program
from gateway.cli.serving import serving

_NAMED = program(
    "bench",
    "",
    "benchmarks",
    needs=("benchmarks.__main__",),
    missing="benchmarks with a name come with a checkout of Agentmem: clone it, and run `make setup`; "
    "`agentmem bench` alone measures this machine",
)


class _Bench(click.Command):
    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and not args[0].startswith("-"):
            return _NAMED.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=_Bench)
@click.option("--model", default="", help="The model's name, as for `agentmem chat`; without it the default model.")
@client_options
def bench(client: Client, model: str) -> None:
    """Measure this machine and a model, in about a minute, and print a table in Markdown.

    TTFT of agents of some thousand tokens, cold, warm and hot, and the tokens/s of one agent and of four at once. If
    no gateway runs at the default address, `agentmem up` is started in the background and stopped afterwards. The
    agents that this takes are deleted.

    In a checkout `agentmem bench NAME` runs a benchmark of the repository, and `agentmem bench list` names them.
    """
    with serving(client, model, keep=False) as (reached, name, _):
        with console(stderr=True).status("") as shown:

            def report(what: str) -> None:
                shown.update(Text(f"measuring {printable(name)}: {what}"))

            measured = reached.ask(lambda agentmem: measure(agentmem, name, report))
        local = is_loopback(parse_address(reached.gateway).host)
        found = figures(measured, local=local)
    client.show(found, markdown(found))
