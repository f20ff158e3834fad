"""Spans by OpenTelemetry's SDK, which only this module imports. A span takes about 50 microseconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc import exporter as otlp_exporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    TraceState,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace import Span as OpenTelemetrySpan
from opentelemetry.trace.status import Status, StatusCode

from agentmem import tracing
from agentmem.distribution import version
from agentmem.process.logs import event
from agentmem.tracing import Trace

log = logging.getLogger(__name__)

WrongVariable = otlp_exporter.InvalidCompressionValueException
"""Raised by the exporter besides Python's errors."""

_NS: Final = 1_000_000_000


def start(service: str, target: str) -> Export:
    """Send this process's spans to `target`. Raises ValueError, RuntimeError, OSError and WrongVariable."""
    if logging.getLogger().level > logging.DEBUG:  # or it logs each retry, and a traceback at the end
        logging.getLogger(otlp_exporter.__name__).setLevel(logging.ERROR)
        logging.getLogger("opentelemetry.sdk._shared_internal").setLevel(logging.CRITICAL)
    resource = Resource.create({"service.name": f"agentmem-{service}", "service.version": version()})
    exporter = OTLPSpanExporter(endpoint=target)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    processor = BatchSpanProcessor(exporter)
    provider.add_span_processor(processor)
    tracing.record_by(partial(served, provider.get_tracer("agentmem")))
    event(log, "traces go out", collector=target)
    return Export(processor, exporter)


class Export(NamedTuple):
    processor: BatchSpanProcessor
    exporter: OTLPSpanExporter


def served(tracer: Tracer, name: str, trace: Trace, attributes: Mapping[str, tracing.Attribute]) -> Span:
    """Begin a received request's span. Any thread."""
    since = time.time_ns() - time.monotonic_ns()
    now = since + round(time.monotonic() * _NS)
    span = tracer.start_span(name, _parent(trace), SpanKind.SERVER, attributes, start_time=now)
    return Span(tracer, span, since)


class Span:
    """A span. `since` plus the monotonic clock is the time of day, in ns: one value for a request's spans in a process,
    so that they nest even if the clock is set.
    """

    def __init__(self, tracer: Tracer, span: OpenTelemetrySpan, since: int) -> None:
        self._tracer = tracer
        self._span = span
        self._since = since
        context = span.get_span_context()
        self.trace_id = format_trace_id(context.trace_id)
        self.span_id = format_span_id(context.span_id)
        self.traceparent = f"00-{self.trace_id}-{self.span_id}-{context.trace_flags:02x}"

    @property
    def recording(self) -> bool:
        return self._span.is_recording()

    def child(
        self, name: str, at: float | None = None, attributes: Mapping[str, tracing.Attribute] | None = None
    ) -> Span:
        """Begin a span within this one, which may have ended; `at` may be past."""
        within = set_span_in_context(self._span, Context())
        span = self._tracer.start_span(name, within, attributes=attributes, start_time=self._time(at))
        return Span(self._tracer, span, self._since)

    def set(self, attributes: Mapping[str, tracing.Attribute]) -> None:
        if self._span.is_recording():
            self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        if self._span.is_recording():
            self._span.update_name(name)

    def note(self, name: str, at: float) -> None:
        if self._span.is_recording():
            self._span.add_event(name, timestamp=self._time(at))

    def end(self, failure: str = "", at: float | None = None) -> None:
        """End it once, with a status's name if it failed; `at` may be past."""
        if not self._span.is_recording():
            return
        if failure:
            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end(self._time(at))

    def _time(self, at: float | None) -> int:
        return self._since + round((time.monotonic() if at is None else at) * _NS)


def _parent(trace: Trace) -> Context:
    if not trace.traceparent:
        return Context()
    _, trace_id, span_id, flags = trace.traceparent.split("-")[:4]
    state = TraceState.from_header([trace.tracestate]) if trace.tracestate else None
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)
    return set_span_in_context(NonRecordingSpan(parent), Context())
