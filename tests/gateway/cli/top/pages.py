"""Pages of metrics, made by the library that makes the services' pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agentmem.process.exposition import LATENCY_BUCKETS
from agentmem.v1 import agent_pb2, model_pb2
from gateway.cli.top.sources import Reading
from gateway.pages import Page
from gateway.scraping import Service

SERVICES: tuple[Service, ...] = ("gateway", "worker", "store")
DOWN = "nothing listens there"
NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


class Process:
    """The metrics of a process, by their names; a second one with the same names is the process after a restart."""

    def __init__(self, started: float | None = None) -> None:
        self.registry = CollectorRegistry()
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}
        if started is not None:
            self.set("process_start_time_seconds", started)

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Increase a counter, whose name is without `_total`."""
        if name not in self._metrics:
            self._metrics[name] = Counter(name, "A counter.", sorted(labels), registry=self.registry)
        metric = self._metrics[name]
        assert isinstance(metric, Counter)
        (metric.labels(**labels) if labels else metric).inc(by)

    def set(self, name: str, to: float, **labels: str) -> None:
        """Set a gauge."""
        if name not in self._metrics:
            self._metrics[name] = Gauge(name, "A gauge.", sorted(labels), registry=self.registry)
        metric = self._metrics[name]
        assert isinstance(metric, Gauge)
        (metric.labels(**labels) if labels else metric).set(to)

    def observe(self, name: str, values: Iterable[float], **labels: str) -> None:
        """Observe values in a histogram."""
        if name not in self._metrics:
            self._metrics[name] = Histogram(
                name, "A histogram.", sorted(labels), buckets=LATENCY_BUCKETS, registry=self.registry
            )
        metric = self._metrics[name]
        assert isinstance(metric, Histogram)
        for value in values:
            (metric.labels(**labels) if labels else metric).observe(value)

    def page(self, at: float = 0.0) -> Page:
        """What a reader sees now."""
        return Page.parse(generate_latest(self.registry).decode(), at)


def reading(
    at: float,
    pages: Mapping[Service, Page | str],
    models: Sequence[model_pb2.Model] | str = (),
    agents: Sequence[agent_pb2.Agent] | str | None = None,
    nodes: list[dict[str, Any]] | str | None = None,
) -> Reading:
    """A reading `at` seconds after noon; pages that are not given are down."""
    time = datetime.fromtimestamp(NOON.timestamp() + at, UTC)
    return Reading(
        at,
        time,
        {service: pages.get(service, DOWN) for service in SERVICES},
        models if isinstance(models, str) else list(models),
        agents if agents is None or isinstance(agents, str) else list(agents),
        nodes,
    )
