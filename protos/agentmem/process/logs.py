"""Structured logs to standard error: one event per line, as text or JSON. No prompt, output or key ever goes in.

Fields go through `extra={"fields": {...}}` or the short form `event(log, "turn finished", agent="…")`. What is written
while a request is served has the field `request_id` besides, from `agentmem.tracing`, and where traces go out fields
`trace_id` and `span_id`. Libraries' lines (uvicorn, grpc) have the same form. Secrets of keys are removed from all, and
characters that a terminal or a reader of lines would obey are written as JSON's escapes.

A process goes on when nothing takes what it writes: a pipe whose reader has ended (`agentmem up | tee log`, where
Ctrl-C ends tee too), a terminal that was closed, a full disk behind a redirection.
"""

import errno
import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from agentmem import tracing
from agentmem.tracing import without_secrets

_NO_READER = frozenset({errno.EPIPE, errno.EIO})
"""The errors of a pipe and of a terminal that are gone for good."""


def write(stream: TextIO, text: str) -> None:
    """Write and flush. Never raises OSError: what cannot be written is lost."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        failed(stream, error)


def failed(stream: TextIO, error: OSError) -> None:
    """Let a standard stream without a reader lead nowhere from now on.

    Otherwise what is buffered fails again with each further write, and at exit, where Python makes 120 of the status.
    """
    if error.errno in _NO_READER:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Logs to standard error as long as it can be written; the standard library's would write tracebacks there."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class names it
        """Drop a record that cannot be written; what is wrong with the record itself is a bug and is shown."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            failed(self.stream, error)
        else:
            super().handleError(record)


def configure(service: str, level: str = "info", style: str = "text") -> None:
    """Send this process's logs to standard error. `level` and `style` are as in ServiceSettings."""
    handler = StandardErrorHandler()
    handler.setFormatter(formatter(service, style))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("grpc").setLevel(max(logging.INFO, logging.getLogger().level))  # at debug it never ends


def formatter(service: str, style: str) -> logging.Formatter:
    """Return what makes a service's lines; `style` is "json" or "text"."""
    return _JsonFormatter(service) if style == "json" else _TextFormatter(service)


def event(log: logging.Logger, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log `message` with fields."""
    log.log(level, message, extra={"fields": fields})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    trace = tracing.current()
    if trace is None:
        return fields
    told = {**fields, "request_id": fields.get("request_id", trace.request_id)}
    if trace.span is not None:
        told.update(trace_id=trace.span.trace_id, span_id=trace.span.span_id)
    return told


class _TextFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s %(levelname).1s {service} %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if fields := _fields(record):
            first, *rest = line.split("\n", 1)
            pairs = " ".join(f"{k}={json.dumps(v, ensure_ascii=False, default=str)}" for k, v in fields.items())
            line = "\n".join([f"{first} {pairs}", *rest])
        return _harmless(without_secrets(line))


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _harmless(without_secrets(json.dumps(line, ensure_ascii=False, default=str)))


def _harmless(line: str) -> str:
    """Return `line` without control characters: C0 and C1, line separators, marks of direction, lone surrogates."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or c in "\n\t" else json.dumps(c)[1:-1] for c in line)
