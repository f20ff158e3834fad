"""The table of all metrics, from what the three processes export as they are made at their start."""

import asyncio
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from cache_service.cluster.clock import SharedClock
from cache_service.cluster.ledger import measure
from cache_service.cluster.membership import Membership
from cache_service.cluster.nodes import Said
from cache_service.cluster.peers import PeerMetrics
from cache_service.metrics import RemoteCollector, RemoteMetrics
from cache_service.store import Store
from deploy.docs.tables import code, table
from gateway.app import Gateway
from gateway.settings import GatewaySettings
from inference_service.metrics import WorkerMetrics
from inference_service.settings import WorkerSettings
from inference_service.worker import Worker

OPTIONAL: Final = "namespace"
"""This label is optional; the table has it in brackets."""
CLUSTER: Final = "store of a cluster"
REMOTE: Final = "store with a remote tier"


class Row(NamedTuple):
    """A metric, and the processes that export it."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str
    processes: tuple[str, ...] = ()


def page() -> str:
    return table(
        ("metric", "type", "labels", "process", "meaning"),
        (
            (code(row.name), row.type, ", ".join(map(_label, row.labels)), ", ".join(row.processes), row.meaning)
            for row in rows()
        ),
    )


@cache
def rows() -> tuple[Row, ...]:
    """Return all metrics, those of several processes first. Opens a store in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="agentmem-") as directory, ThreadPoolExecutor(1) as thread:
        pages = thread.submit(asyncio.run, _pages(Path(directory))).result()  # the caller's may have a running loop
    processes: dict[Row, tuple[str, ...]] = {}
    for process, found in pages.items():
        for row in sorted(found):
            processes[row] = (*processes.get(row, ()), process)
    every = [row._replace(processes=those) for row, those in processes.items()]
    return tuple(sorted(every, key=lambda row: -len(row.processes)))


async def _pages(directory: Path) -> dict[str, list[Row]]:
    gateway = Gateway(GatewaySettings.model_validate({"run_dir": directory / "run"})).metrics.registry
    worker, by_namespace, store, remote, cluster = (CollectorRegistry() for _ in range(5))
    Worker(WorkerSettings.model_validate({"data": directory, "run_dir": directory / "run"}), worker)
    WorkerMetrics(by_namespace, namespace_label=True)
    labels = {row.name: row.labels for row in _rows(by_namespace)}
    opened = Store(directory / "data", store)
    try:
        RemoteMetrics(remote)
        remote.register(RemoteCollector(opened._database, int))
        measure(_nobody(opened), cluster)
        PeerMetrics(cluster)
        return {
            "gateway": list(_rows(gateway)),
            "worker": [row._replace(labels=labels.get(row.name, row.labels)) for row in _rows(worker)],
            "store": list(_rows(store)),
            REMOTE: list(_rows(remote)),
            CLUSTER: list(_rows(cluster)),
        }
    finally:
        opened.close()


def _nobody(store: Store) -> Membership:
    """Return the membership of a node that has not joined: its view is empty, and nothing is asked."""
    return Membership(Said("", "", ""), "", store._database, SharedClock(), lambda _: None, lambda: None)


def _rows(registry: CollectorRegistry) -> Iterator[Row]:
    """Yield its metrics; prometheus_client has no public way to the names of labels."""
    collectors: dict[Any, Any] = registry._collector_to_names
    for collector in list(collectors):
        for family in collector.collect():
            of_family = getattr(family, "_labelnames", ())
            labels = getattr(collector, "_labelnames", of_family)
            yield Row(_name(family), family.type, tuple(labels), family.documentation)


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _label(name: str) -> str:
    return f"[{name}]" if name == OPTIONAL else name
