"""What the store tells Prometheus of its remote tier. There is nothing of it where there is no remote tier."""

from collections.abc import Iterator
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cache_service import objects
from cache_service.database import Database
from cache_service.metrics import PATIENCE_SECONDS, unless_it_fails


class Operation(StrEnum):
    """What was tried."""

    CLAIM = "claim"
    LIST = "list"
    UPLOAD = "upload"
    FETCH = "fetch"
    DELETE = "delete"


class Fetched(StrEnum):
    """How a fetch ended: the file is warm now, or why not."""

    WARM = "warm"
    MISSING = "missing"
    DAMAGED = "damaged"
    FAILED = "failed"


class RemoteMetrics:
    """Counters and a gauge, in a registry of the caller's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.up = Gauge(
            "agentmem_remote_up", "1 while the object store answers and its prefix is ours.", registry=registry
        )
        self.uploads = Counter("agentmem_remote_uploads", "Files that were uploaded.", registry=registry)
        self.upload_bytes = Counter("agentmem_remote_upload_bytes", "Bytes that were uploaded.", registry=registry)
        self.deletions = Counter("agentmem_remote_deletions", "Objects that were deleted.", registry=registry)
        self.fetches = Counter(
            "agentmem_remote_fetches",
            "Files that were asked of the object store: warm (they are here now), missing, damaged or failed.",
            ["result"],
            registry=registry,
        )
        self.fetch_bytes = Counter(
            "agentmem_remote_fetch_bytes", "Bytes that were fetched and found good.", registry=registry
        )
        self.failures = Counter(
            "agentmem_remote_failures",
            "Requests that failed after their retries; they are tried again, fetches excepted.",
            ["operation"],
            registry=registry,
        )
        for result in Fetched:
            self.fetches.labels(result)
        for operation in Operation:
            self.failures.labels(operation)


class RemoteCollector(Collector):
    """What waits and what is there, read from the database at each scrape, on the scraper's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterator[Metric]:
        """The families without values, so that registering doesn't read the disk."""
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        """The families with present values."""
        waiting, size = self._families()
        with unless_it_fails("store.db"):
            backlog = self._database.read_in_time(objects.backlog, PATIENCE_SECONDS)
            waiting.add_metric(["uploads"], backlog.uploads)
            waiting.add_metric(["deletions"], backlog.deletions)
            size.add_metric([], backlog.bytes)
        yield from (waiting, size)

    def _families(self) -> tuple[GaugeMetricFamily, ...]:
        return (
            GaugeMetricFamily(
                "agentmem_remote_backlog",
                "Files that wait to be uploaded, and objects that wait to be deleted (deletions).",
                labels=["operation"],
            ),
            GaugeMetricFamily("agentmem_remote_bytes", "Bytes in the object store.", labels=[]),
        )
