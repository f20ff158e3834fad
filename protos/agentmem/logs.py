"""Structured logs to standard error: one event per line, as text or JSON. No prompt, output or key ever goes in.

Fields go through `extra={"fields": {...}}` or the short form `event(log, "turn finished", agent="…")`. What is written
while a request is served has the field `request_id` besides, from `agentmem.tracing`, and where traces go out fields
`trace_id` and `span_id`. Libraries' lines (uvicorn, grpc) have the same form. Secrets of keys are taken out of all.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from agentmem import tracing
from agentmem.output import StandardErrorHandler
from agentmem.secrecy import without_secrets


def configure(service: str, level: str = "info", style: str = "text") -> None:
    """Send this process's logs to standard error. `level` and `style` are as in ServiceSettings."""
    handler = StandardErrorHandler()
    handler.setFormatter(_JsonFormatter(service) if style == "json" else _TextFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("grpc").setLevel(max(logging.INFO, logging.getLogger().level))  # at debug it never ends


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
        return without_secrets(line)


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
        return without_secrets(json.dumps(line, ensure_ascii=False, default=str))
