"""Commands of all services: safe text, tables, JSON, users' mistakes, and the options of a cluster."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Final
from urllib.parse import urlsplit

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentmem.words import printable

_PIPE_WIDTH: Final = 200

FOLD: Final[Mapping[str, Any]] = {"overflow": "fold"}
LINE: Final[Mapping[str, Any]] = {"no_wrap": True}
RIGHT: Final[Mapping[str, Any]] = {"no_wrap": True, "justify": "right"}
"""Columns of texts that wrap, of texts that do not, and of numbers."""

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")


class Mistake(click.ClickException):
    """A mistake of the user; exit status 2. `located`: each line has its place."""

    exit_code = 2

    def __init__(self, message: str, *, located: bool = False) -> None:
        super().__init__(message)
        self._located = located

    def format_message(self) -> str:
        return printable(self.message, keep="\n")

    def show(self, file: IO[Any] | None = None) -> None:
        if self._located:
            click.echo(self.format_message(), file=file, err=file is None)
        else:
            super().show(file)


def console(*, stderr: bool = False) -> Console:
    """Return standard output or error; without a terminal nothing is cut."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


def is_screen(*streams: IO[str]) -> bool:
    """Return whether all are terminals on which a cursor moves."""
    return all(each.isatty() for each in streams) and os.environ.get("TERM", "dumb") != "dumb"


def in_foreground(terminal: IO[str]) -> bool:
    """Return whether this process may draw now: in the background its shell does."""
    try:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # it is not the controlling terminal
        return True


def table(columns: Mapping[str, Mapping[str, Any]], rows: Iterable[Iterable[str | Text]], **settings: Any) -> Table:
    """Return a table without borders, its texts printable."""
    made = Table(box=None, pad_edge=False, **settings)
    for name, settings_of_column in columns.items():
        made.add_column(name, **settings_of_column)
    for row in rows:
        made.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return made


def write_json(data: object) -> None:
    """Write one line; letters that the locale may lack are escaped."""
    click.echo(json.dumps(data, ensure_ascii=sys.stdout.encoding.lower() not in ("utf-8", "utf8")))


def cluster_options(command: Callable[..., None], help_text: str, *, required: bool) -> Callable[..., None]:
    """Add the options of a cluster's PostgreSQL, as the parameters `cluster`, `survives` and `schema`."""
    survives = click.option(
        "--cluster-survives",
        "survives",
        type=click.Choice(["server", "crash", "nothing"]),
        envvar="AGENTMEM_UP_CLUSTER_SURVIVES",
        default="server",
        show_default=True,
        help="What a commit must survive, as for `agentmem up`.",
    )
    cluster = click.option(
        "--cluster",
        metavar="URL",
        default=None if required else "",
        required=required,
        envvar="AGENTMEM_UP_CLUSTER",
        callback=_without_password,
        help=f"{help_text}; one with a password belongs into AGENTMEM_UP_CLUSTER.",
    )
    return cluster(survives(click.option("--schema", default="agentmem", hidden=True)(command)))


def _without_password(context: click.Context, option: click.Parameter, url: str) -> str:
    is_seen = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    if is_seen and (urlsplit(url).password or "password" in url):
        raise click.UsageError("all users see a password on the command line: set AGENTMEM_UP_CLUSTER instead")
    return url
