"""Spans by OpenTelemetry's SDK, sent to a collector by OTLP over gRPC. The only module that imports OpenTelemetry.

Spans are made on the event loop (some 50 microseconds each), but for the database's own, and wait in a bounded queue;
a thread sends them in batches. What does not fit, and what a collector does not take, is dropped; no request waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc import exporter as otlp_exporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
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
from agentmem.process.logs import event
from agentmem.tracing import Trace

log = logging.getLogger(__name__)

WrongVariable = otlp_exporter.InvalidCompressionValueException
"""What the exporter raises besides errors of Python."""

_NS: Final = 1_000_000_000
_TRIES: Final = 5
_CLOSE_ENOUGH_NS: Final = 20_000


def start(service: str, target: str) -> Export:
    """Record this process's spans from now on, and send them to `target`, http://HOST:PORT or https://HOST:PORT.

    Raises ValueError, RuntimeError, OSError and WrongVariable for variables of OpenTelemetry that cannot be used.
    """
    quiet = logging.getLogger().level > logging.DEBUG
    for name in (otlp_exporter.__name__, "opentelemetry.sdk._shared_internal"):
        # They say it again with every batch, and with tracebacks when they are closed; Reporting says it once.
        logging.getLogger(name).setLevel(logging.CRITICAL if quiet else logging.DEBUG)
    resource = Resource.create({"service.name": f"agentmem-{service}", "service.version": version("agentmem")})
    exporter = Reporting(OTLPSpanExporter(endpoint=target), target)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    processor = BatchSpanProcessor(exporter)
    provider.add_span_processor(processor)
    tracing.record_by(partial(served, provider.get_tracer("agentmem")))
    event(log, "traces go out", collector=target)
    return Export(processor, exporter)


class Export(NamedTuple):
    """The thread that sends, and what it sends by."""

    processor: BatchSpanProcessor
    exporter: Reporting


class Reporting(SpanExporter):
    """Logs when a collector stops taking spans, and when it takes them again. Runs on the sending thread."""

    def __init__(self, exporter: OTLPSpanExporter, target: str) -> None:
        self._exporter = exporter
        self._target = target
        self.failing = False
        """The collector has not taken what was sent last."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self.failing:
            event(
                log,
                "the collector takes no spans; they are dropped until it does (why: --log-level debug)",
                logging.WARNING,
                collector=self._target,
            )
        elif self.failing and not failed:
            event(log, "the collector takes spans again", collector=self._target)
        self.failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def served(tracer: Tracer, name: str, trace: Trace, attributes: Mapping[str, tracing.Attribute]) -> Span:
    """Begin the span of a request that was received with `trace`. Any thread."""
    since = _wall_clock()
    now = since + round(time.monotonic() * _NS)
    span = tracer.start_span(name, _parent(trace), SpanKind.SERVER, attributes, start_time=now)
    return Span(tracer, span, since)


class Span:
    """A span. `since` is what added to the monotonic clock gives the time of day, in nanoseconds.

    Those of one process within one request have the same, so that they nest whatever happens to the time of day.
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
        """Whether it is sampled and has not ended."""
        return self._span.is_recording()

    def child(
        self, name: str, at: float | None = None, attributes: Mapping[str, tracing.Attribute] | None = None
    ) -> Span:
        """Begin a span within this one, which may have ended, now or at a moment before."""
        within = set_span_in_context(self._span, Context())
        span = self._tracer.start_span(name, within, attributes=attributes, start_time=self._time(at))
        return Span(self._tracer, span, self._since)

    def set(self, attributes: Mapping[str, tracing.Attribute]) -> None:
        """Add attributes; no effect when it has ended."""
        if self._span.is_recording():
            self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        """Give it another name; no effect when it has ended."""
        if self._span.is_recording():
            self._span.update_name(name)

    def note(self, name: str, at: float) -> None:
        """Something happened within it; no effect when it has ended."""
        if self._span.is_recording():
            self._span.add_event(name, timestamp=self._time(at))

    def end(self, failure: str = "", at: float | None = None) -> None:
        """End it, now or at a moment before, by a status's name if it failed; no effect when it has ended."""
        if not self._span.is_recording():
            return
        if failure:
            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end(self._time(at))

    def _time(self, at: float | None) -> int:
        return self._since + round((time.monotonic() if at is None else at) * _NS)


def _parent(trace: Trace) -> Context:
    """The caller's span, or none."""
    if not trace.traceparent:
        return Context()
    _, trace_id, span_id, flags = trace.traceparent.split("-")[:4]
    state = TraceState.from_header([trace.tracestate]) if trace.tracestate else None
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _wall_clock() -> int:
    """Nanoseconds from the monotonic clock to the time of day, and not those in which this thread waited."""
    best, width = 0, 0
    for _ in range(_TRIES):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if not best or after - before < width:
            best, width = now - (before + after) // 2, after - before
        if width < _CLOSE_ENOUGH_NS:
            break
    return best
