"""Output of commands: safe text, tables, JSON, and users' mistakes."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any, Final

import click
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
