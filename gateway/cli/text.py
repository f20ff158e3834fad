"""How the commands write things for people."""

import io
import sys
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console

from agentmem import output

_PIPE_WIDTH = 200


def console(*, stderr: bool = False) -> Console:
    """Standard output or error; as wide as the terminal, or wide enough that nothing is cut where it is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


def say(line: str) -> None:
    """A line to standard output, by a command that goes on when nobody reads it."""
    output.write(sys.stdout, f"{line}\n")


def replace_letters_that_the_locale_lacks() -> None:
    """Write them to standard output as "?", where Python would end the command with an error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def printable(text: str, keep: str = "") -> str:
    """`text` with control characters spelled out, except those in `keep`, so that it cannot steer the terminal."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def counted(number: int, what: str) -> str:
    """A number of things: "1 turn", "1,200 turns"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def age(then: Timestamp, now: datetime) -> str:
    """How long ago: "3 min ago"; "never" for the zero timestamp."""
    if not then.seconds:
        return "never"
    return f"{span((now - then.ToDatetime(UTC)).total_seconds())} ago"


def span(seconds: float) -> str:
    """A length of time in its largest unit: "3 min"."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def iso_time(then: Timestamp) -> str | None:
    """The time as RFC 3339, None for the zero timestamp."""
    return then.ToDatetime(UTC).isoformat(timespec="milliseconds") if then.seconds else None
