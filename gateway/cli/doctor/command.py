"""`agentmem doctor`."""

import asyncio
import sys
from collections.abc import Sequence

import click
from pydantic_settings import SettingsConfigDict

from agentmem.checkup import Begun, Finding
from agentmem.settings import SettingsError, load
from gateway.cli.doctor.halves import Half, findings
from gateway.cli.doctor.report import as_json, print_report, status
from gateway.cli.doctor.together import together
from gateway.cli.mistakes import Mistake
from gateway.cli.openblas import preload_here
from gateway.cli.text import console, printable
from gateway.cli.up_settings import UpSettings, service_arguments

_INTERRUPTED = 130


class DoctorSettings(UpSettings):
    """Looks whether this machine and these settings can run Agentmem well, and says what to do where they cannot.

    It takes what `agentmem up` takes, from flags, AGENTMEM_UP_… and the table [up], and hands it on likewise; give it
    the same. With --json it writes JSON. Nothing is changed, and Agentmem may be running meanwhile.

    Exit status 0: all is well, or could only be better; 1: there are problems; 2: something could not be checked.
    """

    model_config = SettingsConfigDict(cli_prog_name="agentmem doctor")


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--json", "machine", is_flag=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def doctor(machine: bool, arguments: tuple[str, ...]) -> None:
    """Look whether this machine can run Agentmem well, and say what to do where it cannot."""
    try:
        settings = load(DoctorSettings, arguments)
    except SettingsError as error:
        raise Mistake(str(error)) from error
    try:
        found = asyncio.run(_all(halves(settings, arguments), quiet=machine))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    if machine:
        click.echo(as_json(found))
    else:
        print_report(console(), found)
    sys.exit(status(found))


def halves(settings: UpSettings, arguments: Sequence[str]) -> list[Half]:
    """Ours with the arguments as they were given, and the others with what `agentmem up` would tell their services."""
    told = service_arguments(settings)
    return [
        Half("gateway", "gateway.cli.doctor.here", arguments),
        Half("store", "cache_service.doctor", told.store),
        Half("worker", "inference_service.doctor", told.worker, preload_here().environment),
    ]


async def _all(parts: Sequence[Half], *, quiet: bool) -> list[Finding]:
    """One half after the other: they measure, and would disturb one another."""
    found: list[Finding] = []
    terminal = console(stderr=True)
    with terminal.status("", spinner="dots") as waiting:
        if quiet:
            waiting.stop()
        for half in parts:
            async for said in findings(half):
                if isinstance(said, Begun):
                    waiting.update(printable(said.check))
                else:
                    found.append(said)
    return [*found, *together(found)]
