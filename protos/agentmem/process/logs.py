"""Structured logs to standard error: one event per line, as text or JSON, without prompts, outputs or keys.

`event(log, "turn finished", agent="…")` logs fields; lines of a request also have its id and, if it is traced, those of
trace and span. A process survives the loss of its standard error, such as `agentmem up | tee log` after Ctrl-C.
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
"""The errors of a pipe and a terminal that are gone for good."""


def write(stream: TextIO, text: str) -> None:
    """Write and flush; never raises OSError."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        failed(stream, error)


def failed(stream: TextIO, error: OSError) -> None:
    """Redirect a standard stream without a reader to nowhere; else its buffer fails again with each write and at exit,
    where Python makes the status 120.
    """
    if error.errno in _NO_READER:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class _Handler(logging.StreamHandler[TextIO]):
    """Logs while the stream can be written, without the standard library's tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class names it
        """Drop a record that cannot be written; show a malformed one, which is a bug."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            failed(self.stream, error)
        else:
            super().handleError(record)


def configure(service: str, level: str = "info", style: str = "text", stream: TextIO | None = None) -> None:
    """Log to `stream`, by default standard error."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(formatter(service, style))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("grpc").setLevel(max(logging.INFO, logging.getLogger().level))  # its debug lines never end


def formatter(service: str, style: str) -> logging.Formatter:
    return _JsonFormatter(service) if style == "json" else _TextFormatter(service)


def event(log: logging.Logger, message: str, level: int = logging.INFO, **fields: Any) -> None:
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
    """Escape control characters: C0, C1, line separators, direction marks, lone surrogates."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or c in "\n\t" else json.dumps(c)[1:-1] for c in line)
