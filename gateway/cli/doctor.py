"""`agentmem doctor`. Each service's checks are a process (`agentmem.process.checkup`), which may hang or crash."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from agentmem.console import FOLD, LINE, console, json_option, table
from agentmem.process.checkup import Finding, State, parse, unknown
from agentmem.words import printable
from gateway.cli.text import counted
from gateway.cli.up.openblas import preload_here
from gateway.cli.up.parameters import UpCommand
from gateway.cli.up.settings import (
    UpSettings,
    flags,
    service_arguments,
    store_environment,
    up_settings,
)

MOST_SECONDS = 120.0
"""Opening a model with a large vocabulary takes seconds."""

_END_SECONDS: Final = 2.0
_MOST_BYTES: Final = 1 << 24
_INTERRUPTED: Final = 130
_STYLES: Final = dict(zip(State, ("green", "yellow", "bold red", "bold magenta"), strict=True))


@click.command(cls=UpCommand)
@json_option
def doctor(as_json: bool, **given: Any) -> None:
    """Check whether this machine and these settings can run Agentmem well, and say what to do if not.

    It takes the settings of `agentmem up`; give it the same. It changes nothing, and Agentmem may be running.

    Exit status 0: no problems, but maybe warnings; 1: problems; 2: something could not be checked.
    """
    settings = up_settings(given)
    try:
        with console(stderr=True).status("checking…", spinner="dots"):
            found = asyncio.run(_of_services(settings, given))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    if as_json:
        click.echo(to_json(found))
    else:
        print_report(console(), found)
    sys.exit(status(found))


async def _of_services(settings: UpSettings, given: Mapping[str, Any]) -> list[Finding]:
    """Check one service after the other, so that measurements do not disturb each other."""
    own = flags({f"no_{name}" if value is False else name: value is False or value for name, value in given.items()})
    arguments = service_arguments(settings)
    return [
        *await findings_of("gateway", "gateway.cli.up.checks", own, {}),
        *await findings_of("store", "cache_service.doctor", arguments.store, store_environment(settings)),
        *await findings_of("worker", "inference_service.doctor", arguments.worker, preload_here().environment),
    ]


async def findings_of(
    service: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> list[Finding]:
    """Return the findings of a module's checks; the last says where their process crashed or hung."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentmem.process.checkup", service, module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            env={**os.environ, **environment},
            process_group=0,
        )
        ended = f"not ended after {MOST_SECONDS:g} s"
        try:
            with suppress(TimeoutError):
                code = await asyncio.wait_for(process.wait(), MOST_SECONDS)
                ended = signal.Signals(-code).name if code < 0 else f"status {code}" if code else ""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):  # the system may hold it in a call
                await asyncio.wait_for(process.wait(), _END_SECONDS)
        said, words = (os.pread(file.fileno(), _MOST_BYTES, 0) for file in (out, errors))
    began, found = parse(said)
    if ended:
        last = words.decode("utf-8", "replace").strip().rpartition("\n")[2] or "it said nothing"
        advice = "look at a disk, network or device that may hang, or at a library whose build is not for this machine"
        found.append(unknown(f"{ended}, and checks after it were not made: {last}", advice, check=began or service))
    return found


def status(found: Sequence[Finding]) -> int:
    states = {finding.state for finding in found}
    return 1 if State.PROBLEM in states else 2 if State.UNKNOWN in states else 0


def print_report(to: Console, found: Sequence[Finding]) -> None:
    rows, states = [], Counter(each.state for each in found)
    for each in found:
        said = Text(printable(each.found))
        if each.advice:
            said.append(f"\n→ {printable(each.advice)}", style="bold" if each.state is not State.OK else "dim")
        rows.append((Text(each.state.value, style=_STYLES[each.state]), each.check, said))
    to.print(table({"": LINE, "check": {**FOLD, "max_width": 24}, "found, and → what to do": FOLD}, rows))
    sums = [f"{states[State.OK]} ok", *(counted(states[each], each.value) for each in (State.WARNING, State.PROBLEM))]
    if states[State.UNKNOWN]:
        sums.append(f"{states[State.UNKNOWN]} not checked")
    to.print(Text(f"\n{', '.join(sums)}", style="bold"))


def to_json(found: Sequence[Finding]) -> str:
    states = Counter(each.state for each in found)
    sums = {"warnings": State.WARNING, "problems": State.PROBLEM, "not_checked": State.UNKNOWN}
    counts = {name: states[state] for name, state in sums.items()}
    return json.dumps({"well": status(found) == 0, **counts, "findings": [asdict(each) for each in found]}, indent=2)
