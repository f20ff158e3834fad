"""`agentmem doctor`. Each service's checks are a process (`agentmem.process.checkup`), which may hang or crash."""

import asyncio
import json
import os
import platform
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from agentmem.console import FOLD, LINE, console, json_option, table
from agentmem.distribution import version
from agentmem.process.checkup import Checks, Finding, Findings, State, ok, parse, problem, unknown, warning
from agentmem.words import printable
from gateway.cli.text import counted
from gateway.cli.up import preflight
from gateway.cli.up.openblas import preload_here
from gateway.cli.up.parameters import UpCommand
from gateway.cli.up.readiness import NAMES, unready
from gateway.cli.up.settings import (
    UpSettings,
    flags,
    gateway_settings,
    service_arguments,
    store_environment,
    up_settings,
)

SETTINGS = UpSettings
MOST_SECONDS = 120.0
"""Opening a model with a large vocabulary takes seconds."""

_END_SECONDS, _ANSWER_SECONDS = 2.0, 5.0
_MOST_BYTES: Final = 1 << 24
_INTERRUPTED: Final = 130
_OWN_FILES, _FEW_FILES = 128, 512
"""Files that a process has open besides connections, and a low limit."""

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
        *await findings_of("gateway", "gateway.cli.doctor", own, {}),
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


def checks(settings: UpSettings) -> Checks:
    """Return the checks of a gateway that `agentmem up` would start."""
    return {
        "versions": lambda: [ok(f"agentmem {version()}, Python {platform.python_version()}")],
        "settings": partial(start, settings),
        "open files": partial(open_files, settings),
        "BLAS": blas,
        "running": lambda: [judge_running(asyncio.run(running(settings.run_directory)))],
        "ports": partial(ports, settings),
    }


def start(settings: UpSettings) -> Findings:
    """Check what `agentmem up` checks first. Raises Mistake."""
    preflight.check(settings)
    return [ok("data directory, models, keys and certificates are as they should be")]


def open_files(settings: UpSettings) -> Findings:
    """Check the soft limit, which services inherit, against their connections."""
    soft, connections = resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2 * gateway_settings(settings).max_connections
    if soft == resource.RLIM_INFINITY or soft >= connections + _OWN_FILES:
        return [ok("any number" if soft == resource.RLIM_INFINITY else f"{soft:,} per process")]
    few = f"{soft:,} per process: enough for {max(0, soft - _OWN_FILES):,} of {connections:,} connections"
    state = problem if soft < _OWN_FILES else warning if soft < _FEW_FILES else ok
    raised = f"ulimit -n {connections + _OWN_FILES}; LimitNOFILE in a systemd unit, NumberOfFiles in a launchd plist"
    return [state(few, raised)]


def blas() -> Findings:
    """Report the BLAS that is preloaded into the worker."""
    found = preload_here()
    what = found.message.replace("preloaded", "is preloaded into the worker by agentmem up")
    return [warning(what, found.advice) if found.advice else ok(what or "none is preloaded: MLX brings what it needs")]


async def running(run: Path) -> dict[str, str]:
    """Return each listening service, with why it is not ready, or ""."""
    found = {name: await unready(run, name, _ANSWER_SECONDS) for name in NAMES}
    return {name: reason for name, reason in found.items() if reason is not None}


def judge_running(found: Mapping[str, str]) -> Finding:
    if not found:
        return ok("no service of Agentmem runs on this run directory")
    facts = {name: reason or "ready" for name, reason in found.items()}
    wrong = [f"the {name} is not ready ({reason})" for name, reason in found.items() if reason]
    wrong += [f"no {name} runs, but there is the {' and the '.join(found)}" for name in NAMES if name not in found]
    if not wrong:
        return ok("store, worker and gateway run and are ready", facts=facts)
    advice = "wait if a model is being loaded; else read that service's log, or stop the rest before `agentmem up`"
    return warning(", ".join(wrong), advice, facts)


def ports(settings: UpSettings) -> Findings:
    """Check that ports are free, unless services run. Raises Mistake."""
    if asyncio.run(running(settings.run_directory)):
        return [ok("not checked while services run here")]
    preflight.check_ports(settings)
    return [ok("all can be had")]
