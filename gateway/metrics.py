from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agentmem.process.exposition import LATENCY_BUCKETS
from agentmem.process.grpc_metrics import ProcessMetrics

WORKER = "worker"
STORE = "store"
"""The gateway's peers."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class GatewayMetrics:
    """The worker has other names, so that no sum counts a request twice. Labels are bounded: routes and RPCs, never
    ids.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.process = ProcessMetrics(self.registry, "gateway", [WORKER, STORE])
        self._http = Counter(
            "agentmem_http_requests_total",
            "HTTP requests answered, by route, method and status code (499: the client went away first, or stopped "
            "reading). A stream that broke off has the code that its error would have had as a page.",
            ["route", "method", "code"],
            registry=self.registry,
        )
        self._latency = Histogram(
            "agentmem_gateway_e2e_request_latency_seconds",
            "Seconds from a generation's arrival over HTTP or gRPC to the end of its answer.",
            ["door"],
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._running = Gauge(
            "agentmem_gateway_num_requests_running",
            "Generations that are being answered over HTTP or gRPC now.",
            ["door"],
            registry=self.registry,
        )
        self.agents_resolved = Counter(
            "agentmem_gateway_agents_resolved_total",
            "Turns over HTTP by how they came to their agent: named, retried, continued, forked, new, none.",
            ["how"],
            registry=self.registry,
        )
        for door in ("http", "grpc"):
            self._running.labels(door)
            self._latency.labels(door)
        for how in ("named", "retried", "continued", "forked", "new", "none"):
            self.agents_resolved.labels(how)

    def http_answered(self, route: str, method: str, code: int) -> None:
        """`route` is a route's pattern."""
        self._http.labels(route, method if method in _METHODS else "other", str(code)).inc()

    @contextmanager
    def generation(self, door: str) -> Iterator[None]:
        """Count a generation over "http" or "grpc" during the block."""
        with self._running.labels(door).track_inprogress(), self._latency.labels(door).time():
            yield
