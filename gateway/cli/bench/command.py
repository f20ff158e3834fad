"""`agentmem bench`."""

import click
from click.core import ParameterSource
from rich.text import Text

from agentmem.addresses import is_loopback, parse_address
from agentmem.console import Mistake, console
from agentmem.words import printable
from gateway.cli.bench.measuring import measure
from gateway.cli.bench.report import figures, markdown
from gateway.cli.client import Client, client_options
from gateway.cli.groups import Lazy, program
from gateway.cli.serving import serving

_NAMED = program(
    "bench",
    "",
    "benchmarks",
    needs=("benchmarks.__main__",),
    missing="benchmarks with a name come with a checkout of Agentmem: clone it, and run `make setup`; "
    "`agentmem bench` alone measures this machine, and `agentmem bench machine` more of it",
)


class _Bench(click.Group):
    """Runs itself without a command, and a checkout's benchmark for a name that is no command of its own."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        for option in self.params:
            given = ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
            if given and not ctx.resilient_parsing:
                raise Mistake(
                    f"{option.opts[0]} is of `{ctx.command_path}` alone; options of {args[0]!r} follow its name"
                )
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "", _NAMED, args


@click.group(
    cls=_Bench,
    invoke_without_command=True,
    commands=[
        Lazy(
            "machine",
            "gateway.cli.bench.machine.command:machine",
            "Measure this machine beside mlx-lm, in ten minutes.",
        )
    ],
)
@click.option("--model", default="", help="The model's name, as for `agentmem chat`; without it the default model.")
@client_options
@click.pass_context
def bench(ctx: click.Context, client: Client, model: str) -> None:
    """Measure this machine and a model, in about a minute, and print a table in Markdown.

    TTFT of agents of some thousand tokens, cold, warm and hot, and the tokens/s of one agent and of four at once. If
    no gateway runs at the default address, `agentmem up` is started in the background and stopped afterwards. The
    agents that this takes are deleted.

    In a checkout `agentmem bench NAME` runs a benchmark of the repository, and `agentmem bench list` names them.
    """
    if ctx.invoked_subcommand is not None:
        return
    with serving(client, model, keep=False) as (reached, name, _):
        with console(stderr=True).status("") as shown:

            def report(what: str) -> None:
                shown.update(Text(f"measuring {printable(name)}: {what}"))

            measured = reached.ask(lambda agentmem: measure(agentmem, name, report))
        local = is_loopback(parse_address(reached.gateway).host)
        found = figures(measured, local=local)
    client.show(found, markdown(found))
