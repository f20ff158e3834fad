"""`agentmem bench machine`."""

import asyncio
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from agentmem import layout
from agentmem.console import Mistake
from gateway.cli.bench.machine import facts, privacy
from gateway.cli.bench.machine.course import Course
from gateway.cli.bench.machine.files import Files
from gateway.cli.bench.machine.page import head
from gateway.cli.bench.machine.scenarios import Known
from gateway.cli.bench.machine.servers import worker_variables
from gateway.cli.bench.machine.subject import Subject, context_of, subject
from gateway.cli.live_line import LiveLine

FORMAT: Final = 1
"""Counts up when the JSON's fields change."""

_MOST_MINUTES: Final = 24 * 60
_INTERRUPTED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _number(minutes: float) -> float:
    if math.isnan(minutes):  # which is in any range
        raise click.BadParameter("nan is no number of minutes")
    return minutes


@click.command()
@click.option("--model", default="", help="As for `agentmem up`; without it the model that `agentmem up` would take.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, max=_MOST_MINUTES, min_open=True),
    callback=lambda _, __, value: _number(value),
    default=10,
    show_default=True,
    help="About how long it may take; what would take longer is left out.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The directory for the two files (default: the current one).",
)
def machine(model: str, minutes: float, output: Path) -> None:
    """Measure this machine with a model, beside mlx-lm, in about ten minutes, and write what you can send.

    Starts, paths and bits chosen, tokens/s of prompts and of 1, 4 and 8 agents, TTFT cold, from disk and from memory at
    1K, 4K and 16K tokens, agents at work, turns 10 s apart, capacity. mlx_lm.server gets the same turns over the same
    files. Only one of them runs at a time.

    It writes agentmem-bench-CHIP-MODEL-DATE.md and .json, again after each part, without this user's and host's names,
    and with the last parts of paths only. An error in one part is written there, and the others go on. Nothing of yours
    is used but the model and variables AGENTMEM_WORKER_…: processes, ports and data are its own, in a temporary
    directory that is deleted at the end, also after Ctrl-C.
    """
    _check(output)
    measured = subject(model)
    with _folder() as folder:
        found = _begun(measured, minutes)
        try:
            source = measured.model.source
            words = privacy.names(folder, output=output.resolve(), model=measured.directory, source=source)
            files = Files(output, found, words)
        except OSError as error:
            raise _refused(output, error) from error
        status = asyncio.run(_run(measured, folder, 60 * minutes, found, files))
    text = files.write(found)
    if files.problem:
        click.echo(text)
        click.echo(
            f"--output {output} does not take the files ({files.problem}): this page is all that is left", err=True
        )
        sys.exit(status or 1)
    click.echo(head(text))
    click.echo(f"all of it: {files.page} and {files.json}")
    sys.exit(status)


def _check(output: Path) -> None:
    """Make it before what takes long. Raises Mistake."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise _refused(output, error) from error


def _refused(output: Path, error: OSError) -> Mistake:
    return Mistake(f"--output {output}: {error.strerror}")


def _begun(measured: Subject, minutes: float) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).date().isoformat(),
        "minutes": minutes,
        "machine": facts.machine(),
        "versions": facts.versions(),
        "settings": worker_variables(),
        "model": {"name": measured.name, "source": measured.model.source, "is_demo": measured.is_demo},
        "parts": [],
    }


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="agentmem-"))
    try:
        if not layout.fits(layout.worker_socket(folder / "run").removeprefix("unix:")):
            raise Mistake(f"TMPDIR: sockets in {folder} would have too long paths; set TMPDIR=/tmp")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(measured: Subject, folder: Path, seconds: float, found: dict[str, Any], files: Files) -> int:
    """Return the exit status: errors of parts are results, an interruption is none."""
    running = asyncio.current_task()
    assert running is not None
    awake = _kept_awake()
    with LiveLine(sys.stderr) as line:
        known = Known(lambda doing: course.tell(doing), context=context_of(measured.directory))
        course = Course(measured, folder, seconds, line, known)
        for number in _SIGNALS:  # the second Ctrl-C comes too late to change anything
            if signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
                asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        try:
            await course.run(found, files)
        except asyncio.CancelledError:
            line.say("stopping…")
            found["stopped"] = True
            return _INTERRUPTED
        finally:
            course.end()
            shutil.rmtree(folder, ignore_errors=True)
            if awake is not None:
                awake.terminate()
                awake.wait()
    return 0


def _kept_awake() -> "subprocess.Popen[bytes] | None":
    """Keep a Mac from sleeping while it runs, as long as this process lives."""
    if sys.platform != "darwin" or shutil.which("caffeinate") is None:
        return None
    return subprocess.Popen(("caffeinate", "-i", "-w", str(os.getpid())))
