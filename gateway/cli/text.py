"""What the commands write: text that cannot steer a terminal, tables, JSON, and mistakes of the user."""

import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any, Final

import click
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentmem.process import logs
from agentmem.v1 import types_pb2
from agentmem.words import printable, short_name, tier_name

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


def described(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    return table({"name": {"no_wrap": True, "min_width": 12}, "value": FOLD}, rows, show_header=False)


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")


def write_json(data: object) -> None:
    """Write one JSON document on one line; letters are escaped where the locale may lack them."""
    click.echo(json.dumps(data, ensure_ascii=sys.stdout.encoding.lower() not in ("utf-8", "utf8")))


def as_dict(message: Message) -> dict[str, Any]:
    """Return a message of the contract as --json writes it: all its fields by their names.

    None stands for absent messages and optional fields, for enums that say nothing, and for no bytes. Enums have their
    short names, durations are seconds, times RFC 3339, bytes Base64, tokens per tier an object by tier, and a field
    whose name ends in `_json` is what it holds, without that ending.
    """
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        absent = field.has_presence and not message.HasField(field.name)
        value = None if absent else _value(field, getattr(message, field.name))
        fields[field.name.removesuffix("_json")] = _parsed(value) if field.name.endswith("_json") and value else value
    return fields


def flattened(message: Message, *parts: str) -> dict[str, Any]:
    """Return a message as `as_dict`, with the fields of some of its parts in the place of these parts."""
    fields = {name: value for name, value in as_dict(message).items() if name not in parts}
    for part in parts:
        fields |= as_dict(getattr(message, part))
    return fields


def _value(field: Any, value: Any) -> Any:
    if not field.is_repeated:
        return _single(field, value)
    if field.message_type is types_pb2.TierTokens.DESCRIPTOR:
        tiers: Sequence[types_pb2.TierTokens] = value
        return {tier_name(part.tier): part.tokens for part in tiers}
    return [_single(field, one) for one in value]


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return iso_time(value)
    if isinstance(value, Duration):
        return round(value.ToTimedelta().total_seconds(), 6)
    if isinstance(value, Message):
        return as_dict(value)
    if isinstance(value, bytes):
        return b64encode(value).decode() or None
    return value if field.enum_type is None else short_name(field.enum_type, value) or None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
