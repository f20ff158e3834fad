from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram

from agentmem.process.grpc_metrics import ProcessMetrics
from cache_service.store import Store
from gateway.metrics import GatewayMetrics
from inference_service.metrics import WorkerMetrics


def registries(data: Path) -> dict[str, CollectorRegistry]:
    store, worker = CollectorRegistry(), CollectorRegistry()
    WorkerMetrics(worker)
    ProcessMetrics(worker, "worker", ["store"])
    Store(data, store).close()
    return {"gateway": GatewayMetrics().registry, "worker": worker, "store": store}


def test_what_two_processes_count_differs_by_a_label(tmp_path: Path) -> None:
    """Otherwise a sum over processes counts a request twice. What each says of itself is by process."""
    labels: dict[str, dict[str, tuple[str, ...]]] = {}
    for process, registry in registries(tmp_path / "d").items():
        for collector in registry._collector_to_names:  # prometheus_client has no public list of labels
            if hasattr(collector, "_labelnames"):
                labels.setdefault(collector._name, {})[process] = collector._labelnames
    shared = {name: by_process for name, by_process in labels.items() if len(by_process) > 1}
    tiers = {"agentmem_cache_evictions", "agentmem_cache_agents"}
    itself = {"agentmem_build_info", "agentmem_ready", "agentmem_peer_up"}
    assert {name for name in shared if not name.startswith("grpc_server_")} - itself <= tiers, shared
    for name, by_process in shared.items():
        # Only the worker tells models apart, and only it has the tier "hot".
        assert len({frozenset(set(labels) - {"model_id"}) for labels in by_process.values()}) == 1, name


def test_all_histograms_have_the_same_buckets(tmp_path: Path) -> None:
    buckets = [
        collector._upper_bounds
        for registry in registries(tmp_path / "d").values()
        for collector in registry._collector_to_names
        if isinstance(collector, Histogram)
    ]
    assert len(buckets) > 5
    assert all(one == buckets[0] for one in buckets)
