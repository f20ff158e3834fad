"""Writes METRICS.md, the table of all metrics, from what the processes export: `python -m deploy.metrics_table`.

Run it from the repository's root, on Linux, which alone has all of `process_*`.
"""

import asyncio
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from cache_service.cluster.clock import SharedClock
from cache_service.cluster.membership import Identity, Membership
from cache_service.metrics import RemoteCollector, RemoteMetrics
from cache_service.shared_ledger import ClusterCollector
from cache_service.store import Store
from cache_service.tiers.peers import PeerMetrics
from gateway.app import Gateway
from gateway.settings import GatewaySettings
from inference_service.metrics import WorkerMetrics
from inference_service.settings import WorkerSettings
from inference_service.worker import Worker

TABLE = Path(__file__).with_name("METRICS.md")
OPTIONAL = "namespace"
"""The label that there is by option only; the table has it in brackets."""
PROCESSES = ("gateway", "worker", "store")
REMOTE = "store, with a remote tier"
CLUSTER = "store, of a cluster"

_HEAD = """# Metrics

Each process serves its own: the gateway on `--metrics` (127.0.0.1:9464) and under `/metrics` of the HTTP API, the
worker one port above, the store two. Times are in seconds, sizes in bytes, reuse in tokens. A histogram `x` exports
`x_bucket`, `x_sum` and `x_count`; its buckets are from 1 ms to 300 s. Series whose labels can be known begin at 0, so
that the first event is an increase. `model_id` is always a registered model; the label `[namespace]` exists only with
the worker's `--namespace-label`.

This file is written by `python -m deploy.metrics_table` from what the processes export; a test compares the two.

| metric | type | labels | process | meaning |
|---|---|---|---|---|
"""


class Row(NamedTuple):
    """A metric as its page has it; `process` is one of PROCESSES, REMOTE, CLUSTER, or some of PROCESSES with commas."""

    name: str
    type: str
    labels: tuple[str, ...]
    process: str
    meaning: str

    def __str__(self) -> str:
        labels = ", ".join(f"[{label}]" if label == OPTIONAL else label for label in self.labels)
        return f"| `{self.name}` | {self.type} | {labels} | {self.process} | {self.meaning} |"


def exported() -> list[Row]:
    """What the three processes export, as they make it at their start. Opens a store in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="agentmem-") as directory:
        found = asyncio.run(_pages(Path(directory)))
    everywhere: dict[Row, list[str]] = {}
    for row in found:
        everywhere.setdefault(row._replace(process=""), []).append(row.process)
    rows = [row._replace(process=", ".join(processes)) for row, processes in everywhere.items()]
    return sorted(rows, key=_place)


def markdown(rows: Iterable[Row]) -> str:
    """The file."""
    return _HEAD + "".join(f"{row}\n" for row in rows)


def differences(table: str, rows: Sequence[Row]) -> list[str]:
    """What has to be done about a file so that it has these rows, line by line; nothing where it has."""
    there = [line for line in table.splitlines() if line.startswith("| `")]
    wanted = [str(row) for row in rows]
    return [
        *(f"add    {line}" for line in wanted if line not in there),
        *(f"remove {line}" for line in there if line not in wanted),
    ]


async def _pages(directory: Path) -> list[Row]:
    pages = [
        ("gateway", _rows(Gateway(GatewaySettings.model_validate({"run_dir": directory / "run"})).metrics.registry))
    ]
    worker, by_namespace = CollectorRegistry(), CollectorRegistry()
    Worker(WorkerSettings.model_validate({"data": directory, "run_dir": directory / "run"}), worker)
    WorkerMetrics(by_namespace, namespace_label=True)
    more = {row.name: row.labels for row in _rows(by_namespace)}
    pages.append(("worker", [row._replace(labels=more.get(row.name, row.labels)) for row in _rows(worker)]))
    store, remote, cluster = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    opened = await asyncio.to_thread(Store, directory / "data", store)
    try:
        pages.append(("store", await asyncio.to_thread(_rows, store)))
        RemoteMetrics(remote)
        remote.register(RemoteCollector(opened._database, opened._rows))
        pages.append((REMOTE, await asyncio.to_thread(_rows, remote)))
        cluster.register(ClusterCollector(_nobody(opened)))
        PeerMetrics(cluster)
        pages.append((CLUSTER, _rows(cluster)))
    finally:
        await asyncio.to_thread(opened.close)
    return [row._replace(process=process) for process, rows in pages for row in rows]


def _nobody(store: Store) -> Membership:
    """Of a node that has not joined: its view is empty, and nothing is asked."""
    identity = Identity(name="", directory="", address="", version="")
    return Membership(identity, "", store._database, SharedClock(), lambda _: None, lambda: None)


def _rows(registry: CollectorRegistry) -> list[Row]:
    return [Row(_name(family), family.type, labels, "", family.documentation) for family, labels in _families(registry)]


def _families(registry: CollectorRegistry) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Families with the names of their labels, for which prometheus_client has no public way."""
    collectors: dict[Any, Any] = registry._collector_to_names
    for collector in list(collectors):
        for family in collector.collect():
            labels = getattr(collector, "_labelnames", None)
            yield family, tuple(getattr(family, "_labelnames", ()) if labels is None else labels)


def _place(row: Row) -> tuple[int, int, str]:
    """What several processes have comes first."""
    optional = row.process in (REMOTE, CLUSTER)
    several = 0 if optional else row.process.count(",")
    first = row.process if optional else row.process.split(", ")[0]
    return -several, (*PROCESSES, REMOTE, CLUSTER).index(first), row.name


def _name(family: Metric) -> str:
    """The name as the page has it."""
    return f"{family.name}_total" if family.type == "counter" else family.name


if __name__ == "__main__":
    TABLE.write_text(markdown(exported()), encoding="utf-8")
