"""`agentmem up` as a child of another command, which it notices the end of by a pipe (`agentmem.process.parent`); in a
process group of its own, because a terminal's Ctrl-C is for the command.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.text import Text

from agentmem import layout
from agentmem.console import Mistake, console
from agentmem.process.model_registry import register
from agentmem.process.model_sources import DEMO, expanded, is_path, parse
from agentmem.words import printable
from gateway.cli.up.default_model import check_hub, check_model
from gateway.cli.up.lock import holder_of, may_hold
from gateway.cli.up.log_file import prepared
from gateway.cli.up.preflight import check
from gateway.cli.up.readiness import unready
from gateway.cli.up.settings import UpSettings, flags, gateway_settings, up_settings

_COMMAND: Final = "gateway.cli.main"
_TAIL_LINES: Final = 5
_INTERRUPTED: Final = 130
_INTERVAL: Final = 0.1
_PROBE_SECONDS: Final = 2.0
_PULL_SECONDS: Final = 5.0
"""For a download's end; what it has fetched is on disk."""


class Stack(NamedTuple):
    """`pid` is its `agentmem up`, and `ours` whether this command started it."""

    address: str
    http: str
    pid: int
    ours: bool


@contextmanager
def stack(model: str, *, keep: bool) -> Iterator[Stack]:
    """Yield the data directory's stack, or a new one with `model`, which is fetched first, and stopped unless `keep`.
    Raises ClickException.
    """
    known = _registered()
    given = {} if model in known else {"model": [model, *up_settings({}).model]}
    settings = up_settings(given)
    if (running := _running(settings)) is not None:
        yield running
        return
    check(settings)
    check_model(settings, name := registered_name(model))
    if gateway_settings(settings).tls_cert is not None:
        raise Mistake(
            "tls_cert of the gateway is set, and what this command starts is asked without TLS; start it with "
            f"`agentmem up`, and name it: --model {model} --gateway HOST:PORT --ca FILE"
        )
    patience = 3 * (settings.grace + layout.END_SECONDS)
    check_hub(settings, name)
    if given:
        fetch(parse(model)[1], settings)
    log, words = prepared(settings.data_directory), (_COMMAND, "up", *flags(given))
    start = log.stat().st_size
    with nullcontext(_detached(words, log)) if keep else _bound(words, patience, log) as up:
        try:
            with console(stderr=True).status("") as waiting:
                found = _wait(settings, up, _log_tail(waiting.update, log, start))
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
    return model if model in known else parse(model)[0]


def _registered() -> list[str]:
    settings = up_settings({})
    try:
        return list(register(settings.model, settings.adapter, settings.models))
    except ValueError as error:
        raise Mistake(str(error)) from error


def fetch(source: str, settings: UpSettings) -> None:
    """Fetch a model, unless it is here. Raises Exit after a reported failure."""
    if settings.offline or source == DEMO or is_path(source) or expanded(source).is_dir():
        return
    with _bound(("inference_service.hub", "fetch", source), _PULL_SECONDS, None) as fetching:
        try:
            status = fetching.wait()
        except KeyboardInterrupt:  # the child has it, too, and reports it
            with suppress(subprocess.TimeoutExpired):
                fetching.wait(_PULL_SECONDS)
            raise click.exceptions.Exit(_INTERRUPTED) from None
    if status:
        raise click.exceptions.Exit(status)


@contextmanager
def _bound(words: Sequence[str], patience: float, log: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module as a child that ends with this process or the block, at the latest after `patience` seconds.

    It writes to `log`, or to standard error, and gets the terminal's Ctrl-C, too.
    """
    lifeline, end = os.pipe()
    watched = (sys.executable, "-m", "agentmem.process.parent", str(lifeline), str(patience), *words)
    with open(lifeline, "rb"), open(end, "wb") as ours:
        with open(log, "ab") if log else nullcontext() as out:
            child = subprocess.Popen(
                watched,
                stdin=subprocess.DEVNULL,
                stdout=out or sys.stderr,
                stderr=subprocess.STDOUT,
                pass_fds=(lifeline,),
                process_group=0 if out else None,
            )
        try:
            yield child
        finally:
            ours.close()
            child.wait()


def _detached(words: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with open(log, "ab") as out:
        return subprocess.Popen(
            (sys.executable, "-m", *words),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(settings: UpSettings, up: "subprocess.Popen[bytes]", told: Callable[[], str]) -> Stack:
    """Wait until `up`, or a faster one, serves. Raises ClickException with its last lines."""
    while True:
        ended = up.poll() is not None
        if (found := _running(settings, up.pid)) is not None:
            return found
        said = told()
        holder = holder_of(settings.data_directory).get("pid", up.pid)
        if ended and (holder == up.pid or not may_hold(settings.data_directory, holder)):
            raise click.ClickException(f"Agentmem could not be started; it wrote:\n{said}")
        time.sleep(_INTERVAL)


def _running(settings: UpSettings, ours: int = 0) -> Stack | None:
    """Return the data directory's stack if it is ready; `ours` is our own process."""
    holder = holder_of(settings.data_directory)
    address, pid = holder.get("grpc", ""), holder.get("pid", 0)
    if not address or asyncio.run(unready(settings.run_directory, "gateway", _PROBE_SECONDS)) != "":
        return None
    return Stack(address, holder["http"], pid, pid == ours)


def _log_tail(show: Callable[[Text], object], log: Path, start: int) -> Callable[[], str]:
    """Return a function that shows the log's last line, and returns its last lines."""

    def tail() -> str:
        with log.open("rb") as file:
            file.seek(start)
            lines = file.read().decode("utf-8", "replace").splitlines()
        show(Text(f"starting Agentmem: {printable(lines[-1]) if lines else '…'}"))
        return "\n".join(map(printable, lines[-_TAIL_LINES:]))

    return tail
