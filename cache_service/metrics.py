"""Metrics of the store and its remote tier. No agent ids and no namespaces in labels."""

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import FileKind
from agentmem.process.logs import event
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import size_of
from cache_service.ledger import agents as ledger_agents
from cache_service.ledger.ledgers import Failure, Ledgers
from cache_service.tiers import objects
from cache_service.tiers.limits import FixedLimits, Reason
from cache_service.tiers.warm_rows import WarmRows

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""How long a page waits for the database."""
REASONS = ("digest", "header", "truncated", "io_error")


def _counter(registry: CollectorRegistry, name: str, text: str, label: str, values: Iterable[str]) -> Counter:
    """Make a counter whose series all begin at 0."""
    counter = Counter(name, text, [label], registry=registry)
    for value in values:
        counter.labels(value)
    return counter


def _gauge(name: str, text: str, values: Mapping[str, float], label: str = "") -> Metric:
    gauge = GaugeMetricFamily(name, text, labels=[label] if label else [])
    for value, number in values.items():
        gauge.add_metric([value] if label else [], number)
    return gauge


class StoreMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._quarantined = _counter(
            registry,
            "agentmem_cache_quarantined",
            "Files of KV that failed verification and were deleted, by fault.",
            "reason",
            (*REASONS, "other"),
        )
        self.failures = _counter(
            registry,
            "agentmem_ledger_failures",
            "Times that the ledger could not be read or written: the disk is full, it fails"
            " (io_error), its server is (unreachable), or rows are damaged.",
            "reason",
            (Failure.FULL, Failure.IO_ERROR, Failure.DAMAGED, Failure.UNREACHABLE),
        )
        self._evictions = Counter(
            "agentmem_cache_evictions",
            "Agents whose KV was dropped from the disk (warm): for the limit (capacity), the disk's floor, a quota, a"
            " ttl, or on request.",
            ["tier", "reason"],
            registry=registry,
        )
        for why in Reason:
            self._evictions.labels("warm", why)

    def evicted(self, reason: Reason, agents: int) -> None:
        self._evictions.labels("warm", reason).inc(agents)

    def quarantined(self, reason: str) -> None:
        self._quarantined.labels(reason if reason in REASONS else "other").inc()


@contextmanager
def unless_it_fails(what: str) -> Iterator[None]:
    """Leave out of the page what cannot be read now."""
    try:
        yield
    except (AgentmemError, sqlite3.Error, OSError) as error:
        event(log, "metrics are left out", logging.WARNING, of=what, error=str(error) or type(error).__name__)


@dataclass(eq=False)
class DiskCollector(Collector):
    """Read at each scrape, on the scraper's thread."""

    _directory: DataDirectory
    _database: Ledgers
    _rows: WarmRows
    _limits: FixedLimits
    _free: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        disk, free, agents = dict[str, float](), dict[str, float](), dict[str, float]()
        with unless_it_fails("store.db and warm.db"):
            sizes, warm = self._rows.read_within(PATIENCE_SECONDS, _counts)
            disk |= {"blocks": sizes[FileKind.BLOCK], "windows": sizes[FileKind.WINDOW]}
            count, remote = self._database.read_within(PATIENCE_SECONDS, ledger_agents.count)
            remote -= warm
            none = max(0, count - len(warm) - len(remote))  # one may have gone between the two reads
            agents = {"warm": len(warm), "remote": len(remote), "none": none}
        with unless_it_fails("the data directory"):
            free[""] = self._free()
            databases = self._directory.database, self._directory.warm_database
            files = [each.with_name(f"{each.name}{suffix}") for each in databases for suffix in ("", "-wal")]
            disk["staging"] = size_of(self._directory.staging)
            disk["ledger"] = sum(path.stat().st_size for path in files if path.exists())
        yield _gauge(
            "agentmem_cache_disk_bytes",
            "Bytes in the data directory: blocks, windows and staging count for the limit, the ledger does not.",
            disk,
            "kind",
        )
        yield _gauge(
            "agentmem_cache_disk_limit_bytes",
            "Bytes that all files of KV together may take.",
            {"": self._limits.warm_bytes},
        )
        yield _gauge("agentmem_cache_disk_free_bytes", "Bytes that are free on the data directory's disk.", free)
        yield _gauge(
            "agentmem_cache_disk_free_floor_bytes",
            "Bytes that must stay free on it: below that agents are evicted and no new files taken.",
            {"": self._limits.free_bytes_floor},
        )
        yield _gauge(
            "agentmem_cache_agents",
            "Agents, by the tier that holds their KV: warm (disk), remote (object store), or none.",
            agents,
            "tier",
        )


def _counts(connection: sqlite3.Connection) -> tuple[dict[FileKind, int], set[str]]:
    return references.sizes(connection), holding.warm_uids(connection)


class Operation(StrEnum):
    CLAIM = "claim"
    LIST = "list"
    UPLOAD = "upload"
    FETCH = "fetch"
    DELETE = "delete"


class Fetched(StrEnum):
    """The file is warm now, or why not."""

    WARM = "warm"
    MISSING = "missing"
    DAMAGED = "damaged"
    FAILED = "failed"


class RemoteMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.up = Gauge(
            "agentmem_remote_up", "1 while the object store answers and its prefix is ours.", registry=registry
        )
        self.uploads = Counter("agentmem_remote_uploads", "Files that were uploaded.", registry=registry)
        self.upload_bytes = Counter("agentmem_remote_upload_bytes", "Bytes that were uploaded.", registry=registry)
        self.deletions = Counter("agentmem_remote_deletions", "Objects that were deleted.", registry=registry)
        self.fetches = _counter(
            registry,
            "agentmem_remote_fetches",
            "Files that were asked of the object store: warm (they are here now), missing, damaged or failed.",
            "result",
            Fetched,
        )
        self.fetch_bytes = Counter(
            "agentmem_remote_fetch_bytes", "Bytes that were fetched and found good.", registry=registry
        )
        self.failures = _counter(
            registry,
            "agentmem_remote_failures",
            "Requests that failed after their retries; they are tried again, fetches excepted.",
            "operation",
            Operation,
        )


@dataclass(eq=False)
class RemoteCollector(Collector):
    """Read at each scrape, on the scraper's thread."""

    _database: Ledgers
    _uploads: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        waiting, size = {"uploads": float(self._uploads())}, dict[str, float]()
        with unless_it_fails("store.db"):
            waiting["deletions"], size[""] = self._database.read_within(PATIENCE_SECONDS, objects.backlog)
        yield _gauge(
            "agentmem_remote_backlog",
            "Files that wait to be uploaded, and objects that wait to be deleted (deletions).",
            waiting,
            "operation",
        )
        yield _gauge("agentmem_remote_bytes", "Bytes in the object store.", size)
