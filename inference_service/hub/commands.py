"""`agentmem models search` and `agentmem models pull`.

Exit status: 0, done; 1, impossible, or the model would not run here; 2, a wrong setting; 130, Ctrl-C.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from huggingface_hub import constants
from huggingface_hub.utils import logging as hub_logging
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from agentmem.commands import Commands
from agentmem.console import Mistake, console, json_option, write_json
from agentmem.errors import AgentmemError, Unavailable
from agentmem.process.model_sources import is_path
from agentmem.process.models import VARIABLE
from agentmem.process.settings import SettingsError, load
from agentmem.sizes import byte_size
from agentmem.words import printable
from inference_service.hub import report
from inference_service.hub.candidates import RECOMMENDED, Candidate, Found, look, search
from inference_service.models.sources import cached, check_disk, fetch, is_directory
from inference_service.settings import WorkerSettings

_INTERRUPTED: Final = 130
_STEP: Final = 0.1
"""The share between two lines."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look for models on the hub, and download one."""
    hub_logging.set_verbosity(logging.ERROR)  # its warnings hold signed URLs


@main.command("search")
@click.argument("words", nargs=-1)
@click.option(
    "--limit",
    type=click.IntRange(1, 100),
    metavar="N",
    default=10,
    show_default=True,
    help="How many to show at most.",
)
@click.option("--any-format", is_flag=True, help="Also models that are not converted for MLX; few are quantized.")
@json_option
def search_command(words: tuple[str, ...], limit: int, any_format: bool, as_json: bool) -> None:
    """Find models on the hub, with their sizes and whether they fit this machine's memory.

    Without WORDS, the most downloaded ones of mlx-community. Nothing is downloaded. *memory* is what weights and
    computing take, *4K agents* the number of agents of 4,096 tokens whose KV fits besides.
    """
    given = _settings()
    with _refusing_errors(), console(stderr=True).status("asking the hub…"):
        found = list(look(search(words, limit, any_format=any_format), given))
    if as_json:
        write_json([report.as_dict(each) for each in found])
        return
    if not found:
        wider = "take fewer words" if any_format else "take fewer words, or --any-format"
        raise click.ClickException(f"the hub has no such model; {wider}")
    console().print(report.results(found))
    best = report.best(found)
    click.echo(
        f"\nagentmem models pull {printable(best.model_id)}    # the largest of these that fits"
        if best
        else f"\nNone of these fits; look for smaller ones: agentmem models search {RECOMMENDED} 1b 4bit"
    )


@main.command("pull")
@click.argument("model")
@click.option("--anyway", is_flag=True, help="Download it although it would not run or not fit here.")
@json_option
def pull_command(model: str, anyway: bool, as_json: bool) -> None:
    """Download MODEL, a hub id, into the hub's cache (HF_HOME), after a line with its size and whether it fits.

    A model that would not run here, or for which the disk has no room, is refused before anything is downloaded. An
    interrupted pull continues. HF_TOKEN is for gated and private models, HF_ENDPOINT names another hub. With --json
    there is a line for each step.
    """
    with _refusing_errors():
        place = _pulled(model, anyway=anyway, as_json=as_json)
    if place is not None:
        _write(as_json, f"it is in {place}; chat: agentmem chat --model {printable(model)}", path=str(place))
        return
    here = cached(model)
    _write(as_json, f"{printable(model)} is here already, in {here}", path=str(here), missing_bytes=0)


@main.command("fetch", hidden=True)
@click.argument("model")
def fetch_command(model: str) -> None:
    """Pull MODEL for `agentmem up` and `agentmem chat`.

    Their worker may have other flags, so a model that config.json alone rules out is downloaded, and a silent hub is
    left to the worker.
    """
    with _refusing_errors():
        try:
            _pulled(model, anyway=False, as_json=False, judged_only=True)
        except Unavailable as error:
            click.echo(f"not downloaded now: {printable(error.message)}; the worker tries again")


def _pulled(model: str, *, anyway: bool, as_json: bool, judged_only: bool = False) -> Path | None:
    """Download a model; return its place, or None if it was here.

    `judged_only` also downloads what cannot be judged, and does nothing without network. Raises ClickException and
    AgentmemError; Unavailable if the hub does not answer.
    """
    if judged_only and constants.is_offline_mode():
        return None
    given = _settings()
    if is_path(model) or is_directory(model):
        raise click.UsageError(f"{model} is a path; there is nothing to download: agentmem up --model {model}")
    if cached(model) is not None:
        return None
    (candidate,) = look([Found(model)], given)
    _check(candidate, anyway=anyway, as_json=as_json, judged_only=judged_only)
    with _progress(candidate, as_json=as_json) as progress:
        return fetch(model, offline=False, progress=progress)


def _check(candidate: Candidate, *, anyway: bool, as_json: bool, judged_only: bool) -> None:
    """Report size and fit. Raises ClickException to refuse, Unavailable if the hub does not answer."""
    if not candidate.answered:
        raise Unavailable(candidate.problem)
    if (listing := candidate.listing) is None:
        raise click.ClickException(candidate.problem)
    if as_json:
        write_json(report.as_dict(candidate))
    else:
        rest = f", of which {byte_size(listing.missing)} are missing here" if listing.missing < listing.total else ""
        click.echo(f"{printable(candidate.model_id)}: {byte_size(listing.total)}{rest}")
        if candidate.fits:
            click.echo(f"fits: {report.what_fits(candidate)}")
    gated = candidate.fits is None and listing.gated
    too_large = candidate.fits is False and candidate.runs
    if not candidate.fits and not anyway and (gated or too_large or not judged_only):
        flag = f"`agentmem models pull {printable(candidate.model_id)} --anyway`" if judged_only else "--anyway"
        even_so = "" if gated else f"; {flag} downloads it even so"
        raise click.ClickException(printable(report.what_fits(candidate)) + even_so)
    check_disk(candidate.model_id, listing.missing)


def _settings() -> WorkerSettings:
    """Return the worker's settings. Raises ClickException if they forbid the network."""
    try:
        settings = load(WorkerSettings, ())
    except SettingsError as error:
        raise Mistake(str(error)) from error
    if settings.offline or constants.is_offline_mode():
        raise click.ClickException(
            f"the hub is not asked: {VARIABLE}, HF_HUB_OFFLINE or a setting forbids the network; unset it, or give "
            "the directory of a model to `agentmem up --model`"
        )
    return settings


@contextmanager
def _refusing_errors() -> Iterator[None]:
    try:
        yield
    except AgentmemError as error:
        raise click.ClickException(printable(error.message)) from error
    except KeyboardInterrupt:
        click.echo("stopped; the same command goes on with what is missing", err=True)
        sys.exit(_INTERRUPTED)


@contextmanager
def _progress(candidate: Candidate, *, as_json: bool) -> Iterator[Callable[[float], None]]:
    """Yield a function that takes the share of bytes."""
    total = candidate.listing.total if candidate.listing else 0
    if as_json or not sys.stdout.isatty():
        last = 0.0

        def line(share: float) -> None:
            nonlocal last
            if share >= last + _STEP or share >= 1.0 > last:
                last = share
                _write(as_json, f"{share:.0%} of {byte_size(total)}", progress=round(share, 4))

        yield line
        return
    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console()) as bar:
        task = bar.add_task("", total=total)
        yield lambda share: bar.update(task, completed=share * total)


def _write(as_json: bool, text: str, **data: object) -> None:
    if as_json:
        write_json(data)
    else:
        click.echo(text)
