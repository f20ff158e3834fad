"""Numbers, times and messages for people."""

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table

from agentmem.console import FOLD, table
from agentmem.process import logs
from agentmem.sizes import byte_size
from gateway.api.contract_json import to_json


def say(line: str) -> None:
    """Write a line, and survive the loss of its reader."""
    logs.write(sys.stdout, f"{line}\n")


def counted(number: int, what: str) -> str:
    """Return "1 turn", "1,200 turns"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def age(then: Timestamp, now: datetime) -> str:
    """Return "3 min ago"; "never" for the zero timestamp."""
    return f"{span((now - then.ToDatetime(UTC)).total_seconds())} ago" if then.seconds else "never"


def span(seconds: float) -> str:
    """Return "3 min"."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def iso_time(then: Timestamp) -> str | None:
    return then.ToDatetime(UTC).isoformat(timespec="milliseconds") if then.seconds else None


def described(message: Message) -> Table:
    """Return a row for each field that is set, by the names of `to_json`."""
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
