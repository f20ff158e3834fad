from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from agentmem.process.grpc_metrics import ProcessMetrics
from agentmem.process.server import GrpcServer


async def test_ready_follows_what_the_server_says_of_itself() -> None:
    registry = CollectorRegistry()
    server = GrpcServer("127.0.0.1:0", [], metrics=ProcessMetrics(registry, "worker", ["store"]))
    ready = [registry.get_sample_value("agentmem_ready")]
    await server.start()
    for serving in (True, False, True):
        await server.set_serving(serving)
        ready.append(registry.get_sample_value("agentmem_ready"))
    await server.stop(0)
    assert [*ready, registry.get_sample_value("agentmem_ready")] == [0, 1, 0, 1, 0]


def test_what_runs_and_whom_it_hears() -> None:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry, "gateway", ["worker", "store"])
    labels = {"service": "gateway", "version": version("agentmem")}
    assert registry.get_sample_value("agentmem_build_info", labels) == 1
    metrics.answered("store", True)
    up = [registry.get_sample_value("agentmem_peer_up", {"peer": peer}) for peer in ("worker", "store")]
    assert up == [0, 1]
    metrics.answered("store", False)
    assert registry.get_sample_value("agentmem_peer_up", {"peer": "store"}) == 0
    with pytest.raises(KeyError):
        metrics.answered("nobody", True)


def test_a_process_without_peers_has_no_such_metric() -> None:
    registry = CollectorRegistry()
    ProcessMetrics(registry, "store")
    assert "agentmem_peer_up" not in {family.name for family in registry.collect()}


def test_pages_have_no_series_of_when_series_were_made() -> None:
    registry = CollectorRegistry()
    Counter("turns", "Turns.", registry=registry).inc()
    assert "created" not in generate_latest(registry).decode()
