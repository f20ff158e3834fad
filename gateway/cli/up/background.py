"""`agentmem up` as a child of another command, which it notices the end of by a pipe (`agentmem.process.parent`); in a
process group of its own, because a terminal's Ctrl-C is for the command.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import click

from agentmem import layout
from agentmem.console import Mistake
from agentmem.process.model_registry import register
from agentmem.process.model_sources import parse
from agentmem.words import printable
from gateway.cli.live_line import LiveLine
from gateway.cli.up.child import bound, detached
from gateway.cli.up.default_model import check_hub, check_model
from gateway.cli.up.fetching import fetch
from gateway.cli.up.lock import holder_of, may_hold
from gateway.cli.up.log_file import prepared
from gateway.cli.up.preflight import check
from gateway.cli.up.readiness import start_line, unready
from gateway.cli.up.settings import UpSettings, flags, gateway_settings, up_settings

_COMMAND: Final = "gateway.cli.main"
_TAIL_LINES: Final = 5
_INTERVAL: Final = 0.1
_PROBE_SECONDS: Final = 2.0


class Stack(NamedTuple):
    """`pid` is its `agentmem up`, and `ours` whether this command started it."""

    address: str
    http: str
    pid: int
    ours: bool


@contextmanager
def stack(model: str, *, keep: bool) -> Iterator[Stack]:
    """Yield the data directory's stack, or a new one with `model`, which is downloaded first, and stopped unless
    `keep`. "" is the default model of the settings. Raises ClickException.
    """
    known = _registered()
    given = {} if not model or model in known else {"model": [model, *up_settings({}).model]}
    settings = up_settings(given)
    if (running := _running(settings)) is not None:
        yield running
        return
    check(settings)
    check_model(settings, name := registered_name(model))
    if gateway_settings(settings).tls_cert is not None:
        raise Mistake(
            "tls_cert of the gateway is set, and what this command starts is asked without TLS; start it with "
            f"`agentmem up`, and name it: --model {model or name} --gateway HOST:PORT --ca FILE"
        )
    patience = 3 * (settings.grace + layout.END_SECONDS)
    check_hub(settings, name)
    if given:
        fetch(parse(model)[1], settings)
    log, words = prepared(settings.data_directory), (_COMMAND, "up", *flags(given))
    start = log.stat().st_size
    with nullcontext(detached(words, log)) if keep else bound(words, patience, log) as up:
        try:
            found = _wait(settings, up, partial(_tail, log, start))
        except BaseException:
            up.terminate()
            raise
        try:
            yield found
        finally:
            if not keep and up.poll() is None:
                click.secho("stopping Agentmem…", dim=True, err=True)


def registered_name(model: str) -> str:
    known = _registered()
    return model if model in known else parse(model)[0] if model else known[0]


def _registered() -> list[str]:
    settings = up_settings({})
    try:
        return list(register(settings.model, settings.adapter, settings.models))
    except ValueError as error:
        raise Mistake(str(error)) from error


def _wait(settings: UpSettings, up: "subprocess.Popen[bytes]", tail: Callable[[], str]) -> Stack:
    """Wait until `up`, or a faster one, serves. Raises ClickException with its last lines."""
    with LiveLine(sys.stderr) as line:
        while True:
            ended = up.poll() is not None
            if (found := _running(settings, up.pid)) is not None:
                return found
            holder = holder_of(settings.data_directory).get("pid", up.pid)
            if ended and (holder == up.pid or not may_hold(settings.data_directory, holder)):
                raise click.ClickException(f"Agentmem could not be started; it wrote:\n{tail()}")
            line.show(asyncio.run(start_line(settings.run_directory, _PROBE_SECONDS)))
            time.sleep(_INTERVAL)


def _running(settings: UpSettings, ours: int = 0) -> Stack | None:
    """Return the data directory's stack if it is ready; `ours` is our own process."""
    holder = holder_of(settings.data_directory)
    address, pid = holder.get("grpc", ""), holder.get("pid", 0)
    if not address or asyncio.run(unready(settings.run_directory, "gateway", _PROBE_SECONDS)) != "":
        return None
    return Stack(address, holder["http"], pid, pid == ours)


def _tail(log: Path, start: int) -> str:
    """Return the last lines that were written after `start`."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(map(printable, lines[-_TAIL_LINES:]))
