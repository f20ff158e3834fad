"""What the commands write: text that cannot steer a terminal, tables, JSON, and mistakes of the user."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import IO, Any, Final

import click
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentmem.process import logs
from agentmem.sizes import byte_size
from agentmem.words import printable
from gateway.api.contract_json import to_json

_PIPE_WIDTH = 200


class Mistake(click.ClickException):
    """Nothing was done, because of something on the command line, in a file, or on this machine. Exit status 2.

    With `located` each line of the message says where it is, and is written as it is.
    """

    exit_code = 2

    def __init__(self, message: str, *, located: bool = False) -> None:
        super().__init__(message)
        self._located = located

    def show(self, file: IO[Any] | None = None) -> None:
        if self._located:
            click.echo(self.message, file=file, err=file is None)
        else:
            super().show(file)


def console(*, stderr: bool = False) -> Console:
    """Return standard output or error; as wide as the terminal, or so wide that nothing is cut where it is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


def say(line: str) -> None:
    """Write a line to standard output; the command goes on if nothing reads it."""
    logs.write(sys.stdout, f"{line}\n")


def counted(number: int, what: str) -> str:
    """Return a number of things: "1 turn", "1,200 turns"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def age(then: Timestamp, now: datetime) -> str:
    """Return how long ago: "3 min ago"; "never" for the zero timestamp."""
    return f"{span((now - then.ToDatetime(UTC)).total_seconds())} ago" if then.seconds else "never"


def span(seconds: float) -> str:
    """Return a length of time in its largest unit: "3 min"."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def iso_time(then: Timestamp) -> str | None:
    """Return the time as RFC 3339, None for the zero timestamp."""
    return then.ToDatetime(UTC).isoformat(timespec="milliseconds") if then.seconds else None


FOLD: Final[Mapping[str, Any]] = {"overflow": "fold"}
LINE: Final[Mapping[str, Any]] = {"no_wrap": True}
RIGHT: Final[Mapping[str, Any]] = {"no_wrap": True, "justify": "right"}
"""Columns of a table: of texts that may wrap, of texts that may not, and of figures."""


def table(columns: Mapping[str, Mapping[str, Any]], rows: Iterable[Iterable[str | Text]], **settings: Any) -> Table:
    """Return a table without borders; control characters in its texts are spelled out."""
    made = Table(box=None, pad_edge=False, **settings)
    for name, settings_of_column in columns.items():
        made.add_column(name, **settings_of_column)
    for row in rows:
        made.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return made


def described(message: Message) -> Table:
    """Return a table of all that a message of the contract says, by the names of `to_json`; bytes as people read them.

    A message in a list is one row, and one elsewhere a row for each of its fields.
    """
    return table(
        {"name": {"no_wrap": True, "min_width": 12}, "value": FOLD}, _rows(to_json(message)), show_header=False
    )


def _rows(fields: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{within}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from ((within + name, ", ".join(map(" ".join, _rows(each)))) for each in value)
        elif value:
            yield within + name, _shown(name, value)


def _shown(name: str, value: Any) -> str:
    match value:
        case list():
            return ", ".join(_shown(name, each) for each in value)
        case bool():
            return "yes"
        case int():
            return byte_size(value) if "bytes" in name else f"{value:,}"
        case float():
            return f"{value:.3g}"
        case _:
            return str(value)


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")


def write_json(data: object) -> None:
    """Write one JSON document on one line; letters are escaped where the locale may lack them."""
    click.echo(json.dumps(data, ensure_ascii=sys.stdout.encoding.lower() not in ("utf-8", "utf8")))
