"""The metrics pages of the three processes together."""

from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram

from cache_service.store import Store
from gateway.metrics import GatewayMetrics
from inference_service.metrics import WorkerMetrics


def registries(data: Path) -> dict[str, CollectorRegistry]:
    """A registry for each process, with all of its metrics."""
    store, worker = CollectorRegistry(), CollectorRegistry()
    WorkerMetrics(worker)
    Store(data, store).close()
    return {"gateway": GatewayMetrics().registry, "worker": worker, "store": store}


def test_what_two_processes_count_has_the_same_labels(tmp_path: Path) -> None:
    """Otherwise a sum over processes counts a request twice."""
    labels: dict[str, dict[str, tuple[str, ...]]] = {}
    for process, registry in registries(tmp_path / "d").items():
        for collector in registry._collector_to_names:  # prometheus_client has no public list of labels
            if hasattr(collector, "_labelnames"):
                labels.setdefault(collector._name, {})[process] = collector._labelnames
    shared = {name: by_process for name, by_process in labels.items() if len(by_process) > 1}
    assert shared.keys() <= {"agentmem_cache_evictions", "agentmem_cache_agents"}, shared
    assert all(len(set(by_process.values())) == 1 for by_process in shared.values())


def test_all_histograms_have_the_same_buckets(tmp_path: Path) -> None:
    buckets = [
        collector._upper_bounds
        for registry in registries(tmp_path / "d").values()
        for collector in registry._collector_to_names
        if isinstance(collector, Histogram)
    ]
    assert len(buckets) > 5
    assert all(one == buckets[0] for one in buckets)
