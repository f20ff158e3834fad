"""A collector: takes spans by OTLP over gRPC as a real one does, and hands them out by trace."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

PATIENCE = 30.0


@dataclass(frozen=True)
class Seen:
    """One span as it came. Times are in nanoseconds since 1970; `failure` is its error's status, or empty."""

    service: str
    name: str
    id: str
    parent: str
    kind: str
    start: int
    end: int
    failure: str
    attributes: dict[str, Any] = field(hash=False)
    events: dict[str, int] = field(hash=False)

    @property
    def nanoseconds(self) -> int:
        return self.end - self.start

    def encloses(self, other: Seen, slack: int = 0) -> bool:
        """Return whether the other one is within it, give or take `slack` for the clocks of two processes."""
        return self.start - slack <= other.start <= other.end <= self.end + slack


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Spans by trace. Any thread."""

    def __init__(self) -> None:
        self.address = ""
        self.raw: list[bytes] = []
        self.resources: dict[str, dict[str, Any]] = {}
        self._traces: dict[str, list[Seen]] = defaultdict(list)
        self._lock = threading.Lock()

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            self.raw.append(request.SerializeToString())
            for group in request.resource_spans:
                resource = _values(group.resource.attributes)
                service = str(resource["service.name"])
                self.resources[service] = resource
                for scope in group.scope_spans:
                    for span in scope.spans:
                        self._traces[span.trace_id.hex()].append(_seen(service, span))
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, trace_id: str) -> list[Seen]:
        with self._lock:
            return sorted(self._traces.get(trace_id, []), key=lambda span: (span.start, -span.end))

    @property
    def traces(self) -> int:
        with self._lock:
            return len(self._traces)

    async def trace(self, trace_id: str, names: Set[tuple[str, str]]) -> list[Seen]:
        """A trace, once it has spans of all these services and names, and all their parents but the caller's span.

        What a span encloses ends before it, so it may come in an earlier batch.
        """
        async with asyncio.timeout(PATIENCE):
            while True:
                spans = self.spans(trace_id)
                missing = names - {(span.service, span.name) for span in spans}
                roots = [span for span in spans if span.parent not in {span.id for span in spans}]
                if not missing and len(roots) == 1:
                    return spans
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    raise AssertionError(f"not there: {missing}, or parents of {roots}; there is: {spans}") from None


@contextmanager
def collecting(address: str = "127.0.0.1:0") -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2, "collector"))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port(address)
    collector.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


def _seen(service: str, span: trace_pb2.Span) -> Seen:
    failed = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    return Seen(
        service.removeprefix("agentmem-"),
        span.name.removeprefix("agentmem.v1."),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.message or "unnamed" if failed else "",
        _values(span.attributes),
        {event.name: event.time_unix_nano for event in span.events},
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}
