"""Metrics of every process: `grpc_server_*` of its RPCs, and whether it and its peers serve.

Names and labels are those of gRPC's middleware in other languages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)

from agentmem.distribution import version
from agentmem.process.exposition import LATENCY_BUCKETS

disable_created_metrics()  # type: ignore[no-untyped-call]
# Else a third of every page would be times of creation.

_LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
_TYPES: Final = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}


@dataclass(frozen=True)
class MethodCounts:
    """Any thread."""

    started: Counter
    received: Counter
    sent: Counter
    handled: dict[grpc.StatusCode, Counter]
    seconds: Histogram | None

    def ended(self, code: grpc.StatusCode, seconds: float) -> None:
        if self.seconds is not None:
            self.seconds.observe(seconds)
            self.handled[code].inc()


_IGNORED: Final = Counter("ignored", "Counts of methods that are not served.", registry=None)
UNCOUNTED: Final = MethodCounts(_IGNORED, _IGNORED, _IGNORED, {}, None)


class RpcMetrics:
    """Counts RPCs; `methods` are by path, "/package.Service/Method"."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"grpc_server_{name}", text, (*_LABELS, *labels), registry=registry)

        self._started = counter("started", "RPCs that began: their handler has the request, or its first part.")
        self._handled = counter("handled", "RPCs that ended, by the status that their caller gets.", "grpc_code")
        self._received = counter("msg_received", "Messages that came from callers, in streams and alone.")
        self._sent = counter("msg_sent", "Messages that went to callers, in streams and alone.")
        self._seconds = Histogram(
            "grpc_server_handling_seconds",
            "Seconds from an RPC's beginning to its end, whatever its status; of a stream, to its last message.",
            _LABELS,
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.methods: dict[str, MethodCounts] = {}

    def serve(self, services: Iterable[str]) -> None:
        """Count the RPCs of these services, from 0. Raises KeyError."""
        for name in services:
            service: ServiceDescriptor = descriptor_pool.Default().FindServiceByName(name)
            for method in service.methods:
                labels = (_TYPES[method.client_streaming, method.server_streaming], name, method.name)
                self.methods[f"/{name}/{method.name}"] = MethodCounts(
                    self._started.labels(*labels),
                    self._received.labels(*labels),
                    self._sent.labels(*labels),
                    {code: self._handled.labels(*labels, code.name) for code in grpc.StatusCode},
                    self._seconds.labels(*labels),
                )


class _Process(ProcessCollector):
    """Memory, processor time and start of the process, also by name: `/metrics?name[]=…`."""

    def describe(self) -> Iterable[Metric]:
        return self.collect()


class ProcessMetrics:
    """`peers` are services that this one calls. Any thread."""

    def __init__(self, registry: CollectorRegistry, service: str, peers: Iterable[str] = ()) -> None:
        build = Gauge("agentmem_build_info", "1, with what runs.", ["service", "version"], registry=registry)
        build.labels(service, version()).set(1)
        self._ready = Gauge("agentmem_ready", "1 while the process itself says SERVING, else 0.", registry=registry)
        self._peers = {}
        if peers:
            up = Gauge(
                "agentmem_peer_up",
                "1 while another process that this one calls says SERVING, else 0; one that hangs is seen within 11 s.",
                ["peer"],
                registry=registry,
            )
            self._peers = {peer: up.labels(peer) for peer in peers}
        registry.register(_Process(registry=None))
        self.rpcs = RpcMetrics(registry)

    def serving(self, ready: bool) -> None:
        self._ready.set(ready)

    def answered(self, peer: str, up: bool) -> None:
        self._peers[peer].set(up)
