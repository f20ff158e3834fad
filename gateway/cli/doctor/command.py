"""`agentmem doctor`: run each service's checks as a process, and show what they found."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final

import click
from pydantic_settings import SettingsConfigDict
from rich.console import Console
from rich.text import Text

from agentmem.console import FOLD, LINE, console, table
from agentmem.process.checkup import Finding, State, parse, problem, unknown
from agentmem.sizes import byte_size
from agentmem.words import printable
from gateway.cli.text import counted
from gateway.cli.up.openblas import preload_here
from gateway.cli.up.settings import SettingsCommand, UpSettings, service_arguments, store_environment, up_settings

SILENCE_SECONDS = 60.0
"""What a check may take. Opening a model with a large vocabulary takes seconds; the rest is much faster."""

_LINE_BYTES: Final = 1 << 20
_END_SECONDS: Final = 2.0
_INTERRUPTED: Final = 130
_STYLES: Final = {
    State.OK: "green",
    State.WARNING: "yellow",
    State.PROBLEM: "bold red",
    State.UNKNOWN: "bold magenta",
}


class DoctorSettings(UpSettings):
    """Looks whether this machine and these settings can run Agentmem well, and says what to do where they cannot.

    It takes what `agentmem up` takes, from flags, AGENTMEM_UP_… and the table [up], and hands it on likewise; give it
    the same. With --json it writes JSON. Nothing is changed, and Agentmem may be running meanwhile.

    Exit status 0: all is well, or could only be better; 1: there are problems; 2: something could not be checked.
    """

    model_config = SettingsConfigDict(cli_prog_name="agentmem doctor")


@click.command(
    cls=SettingsCommand,
    settings=DoctorSettings,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.option("--json", "as_json", is_flag=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def doctor(as_json: bool, arguments: tuple[str, ...]) -> None:
    """Look whether this machine can run Agentmem well, and say what to do where it cannot."""
    settings = up_settings(DoctorSettings, arguments)
    try:
        found = asyncio.run(_all(settings, arguments, quiet=as_json))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    if as_json:
        click.echo(to_json(found))
    else:
        print_report(console(), found)
    sys.exit(status(found))


async def _all(settings: UpSettings, arguments: Sequence[str], *, quiet: bool) -> list[Finding]:
    """Return all findings. Services are checked one after the other, since measurements would disturb one another."""
    services = service_arguments(settings)
    found: list[Finding] = []
    with console(stderr=True).status("", spinner="dots") as waiting:
        if quiet:
            waiting.stop()
        for service, module, given, environment in (
            ("gateway", "gateway.cli.doctor.checks", arguments, {}),
            ("store", "cache_service.doctor", services.store, store_environment(settings)),
            ("worker", "inference_service.doctor", services.worker, preload_here().environment),
        ):
            async for each in findings(service, module, given, environment):
                if isinstance(each, str):
                    waiting.update(printable(each))
                else:
                    found.append(each)
    return [*found, *combined(found)]


async def findings(
    service: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> AsyncIterator[str | Finding]:
    """Run a module that writes lines of `agentmem.process.checkup`; yield the checks that begin, and their findings.

    A check that writes nothing for SILENCE_SECONDS is ended with its process, and the last finding names it.
    """
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment},
            process_group=0,
            limit=_LINE_BYTES,
        )
        assert process.stdout is not None
        at = service
        try:
            while line := await asyncio.wait_for(process.stdout.readline(), SILENCE_SECONDS):
                with suppress(ValueError):  # written by a library
                    said = parse(line)
                    at = said if isinstance(said, str) else said.check
                    yield said
            ended = await asyncio.wait_for(process.wait(), SILENCE_SECONDS)
        except TimeoutError:
            hung = f"it did not end within {SILENCE_SECONDS:g} s, and the {service}'s checks after it were not made"
            yield unknown(hung, "look at what it has to do with, which may hang: a disk, a network, a device", check=at)
        else:
            if ended:
                errors.seek(0)
                last = errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2] or "it said nothing"
                outcome = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
                read = "read what it says; a crash in a library often means that its build is not for this machine"
                yield unknown(f"the {service}'s checks ended here with {outcome}: {last}", read, check=at)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):  # the system may hold it in a call
                await asyncio.wait_for(process.wait(), _END_SECONDS)


def combined(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield what two services' findings say together: models of which not one agent's KV would be kept on the disk."""
    limit = next((each.facts["limit_bytes"] for each in found if "limit_bytes" in each.facts), None)
    for each in found:
        if limit is not None and (needed := each.facts.get("agent_bytes", 0)) > limit:
            more = f"an agent of 4,096 tokens takes {byte_size(needed)}, and the store takes no more than"
            raised = "raise warm_bytes in [store] of the TOML (AGENTMEM_STORE_WARM_BYTES), or make room on the disk"
            yield problem(f"{more} {byte_size(limit)}", raised, check=each.check)


def status(found: Sequence[Finding]) -> int:
    """Return the exit status, which DoctorSettings explains."""
    states = {finding.state for finding in found}
    return 1 if State.PROBLEM in states else 2 if State.UNKNOWN in states else 0


def print_report(to: Console, found: Sequence[Finding]) -> None:
    """Print a row for each finding, with what to do below what was found, and the sums."""
    rows = []
    for each in found:
        said = Text(printable(each.found))
        if each.advice:
            said.append(f"\n→ {printable(each.advice)}", style="bold" if each.state is not State.OK else "dim")
        rows.append((Text(each.state.value, style=_STYLES[each.state]), each.check, said))
    to.print(table({"": LINE, "check": {**FOLD, "max_width": 24}, "found, and → what to do": FOLD}, rows))
    states = Counter(each.state for each in found)
    sums = [f"{states[State.OK]} ok", *(counted(states[each], each.value) for each in (State.WARNING, State.PROBLEM))]
    if states[State.UNKNOWN]:
        sums.append(f"{states[State.UNKNOWN]} not checked")
    to.print(Text(f"\n{', '.join(sums)}", style="bold"))


def to_json(found: Sequence[Finding]) -> str:
    """Return the findings for machines."""
    states = Counter(each.state for each in found)
    sums = {"warnings": State.WARNING, "problems": State.PROBLEM, "not_checked": State.UNKNOWN}
    counts = {name: states[state] for name, state in sums.items()}
    return json.dumps({"well": status(found) == 0, **counts, "findings": [asdict(each) for each in found]}, indent=2)
