"""Pages of metrics, made by the library that makes the services' pages: of two models at work, in round figures."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agentmem.process.exposition import LATENCY_BUCKETS
from gateway.http.overview import Pages, overview_of
from gateway.scraping import Samples

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
STARTED = NOON.timestamp() - 7200


class Process:
    """The metrics of a process, by their names; a second one with the same names is the process after a restart."""

    def __init__(self, started: float | None = None) -> None:
        self.registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        if started is not None:
            self.set("process_start_time_seconds", started)

    def _metric(self, kind: Any, name: str, labels: dict[str, str], **further: Any) -> Any:
        if name not in self._metrics:
            self._metrics[name] = kind(name, "A metric.", sorted(labels), registry=self.registry, **further)
        assert isinstance(self._metrics[name], kind)
        return self._metrics[name].labels(**labels) if labels else self._metrics[name]

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        self._metric(Counter, name, labels).inc(by)

    def set(self, name: str, to: float, **labels: str) -> None:
        self._metric(Gauge, name, labels).set(to)

    def observe(self, name: str, values: Iterable[float], **labels: str) -> None:
        metric = self._metric(Histogram, name, labels, buckets=LATENCY_BUCKETS)
        for value in values:
            metric.observe(value)

    def page(self) -> Samples:
        return Samples.parse(generate_latest(self.registry).decode())


class Processes:
    """Gateway, worker and store, which have worked for a while."""

    def __init__(self) -> None:
        self.gateway, self.worker, self.store = (Process(STARTED) for _ in range(3))
        for service, process in (("gateway", self.gateway), ("worker", self.worker), ("store", self.store)):
            process.set("agentmem_build_info", 1, service=service, version="0.1.0")
            process.set("agentmem_ready", 1)
            process.set("process_resident_memory_bytes", 84_200_000)
            process.count("process_cpu_seconds", 50)
            for code in ("OK", "NOT_FOUND", "INTERNAL"):
                self.rpc(process, code, 100)
        self.gateway.set("agentmem_peer_up", 1, peer="worker")
        self.gateway.set("agentmem_peer_up", 1, peer="store")
        self.worker.set("agentmem_peer_up", 1, peer="store")
        self.gateway.set("agentmem_gateway_num_requests_running", 4, door="http")
        self.gateway.set("agentmem_gateway_num_requests_running", 1, door="grpc")
        self.gateway.set("agentmem_gateway_workflows_running", 1)
        self._models()
        for kind, size in (("blocks", 900_000_000), ("windows", 60_000_000), ("ledger", 5_000_000)):
            self.store.set("agentmem_cache_disk_bytes", size, kind=kind)
        self.store.set("agentmem_cache_disk_limit_bytes", 1e9)
        self.store.set("agentmem_cache_disk_free_bytes", 80e9)
        self.store.set("agentmem_cache_disk_free_floor_bytes", 5e9)
        for tier, number in (("warm", 40), ("remote", 7), ("none", 3)):
            self.store.set("agentmem_cache_agents", number, tier=tier)
        self.store.count("agentmem_cache_evictions", 0, tier="warm", reason="ttl")
        self.store.count("agentmem_cache_evictions", 5, tier="warm", reason="capacity")
        self.store.count("agentmem_cache_quarantined", 1, reason="digest")

    @staticmethod
    def rpc(process: Process, code: str, number: int) -> None:
        names = {"grpc_type": "unary", "grpc_service": "agentmem.v1.AgentService", "grpc_method": "GetAgent"}
        process.count("grpc_server_handled", number, grpc_code=code, **names)

    def _models(self) -> None:
        for model, running in (("demo", 3), ("llama-3.1-8b", 0)):
            self.worker.set("agentmem_num_requests_running", running, model_id=model)
            self.worker.set("agentmem_num_requests_waiting", running // 3, model_id=model)
            self.turns(model, prompt=1000, hot=500, generated=100)
        self.worker.set("agentmem_model_info", 1, model_id="demo")
        self.worker.set("agentmem_pool_blocks", 120, model_id="demo", state="used")
        self.worker.set("agentmem_pool_blocks", 392, model_id="demo", state="free")
        self.worker.set("agentmem_cache_agents", 12, model_id="demo", tier="hot")
        self.worker.count("agentmem_cache_evictions", 2, model_id="demo", tier="hot", reason="capacity")
        for name in ("load", "store"):
            self.worker.count(f"agentmem_cache_{name}_bytes", 1e9, model_id="demo")

    def turns(self, model: str, prompt: int, hot: int, generated: int) -> None:
        self.worker.count("agentmem_prompt_tokens", prompt, model_id=model)
        self.worker.count("agentmem_prompt_tokens_cached", hot, model_id=model, tier="hot")
        self.worker.count("agentmem_prompt_tokens_cached", 0, model_id=model, tier="warm")
        self.worker.count("agentmem_generation_tokens", generated, model_id=model)
        self.worker.count("agentmem_requests_finished", 1, model_id=model, reason="stop")

    def work(self) -> None:
        self.turns("demo", prompt=4000, hot=3600, generated=500)
        first, between = "agentmem_time_to_first_token_seconds", "agentmem_inter_token_latency_seconds"
        self.worker.observe(first, [0.02] * 20, model_id="demo", tier="hot")
        self.worker.observe(first, [2.0], model_id="demo", tier="none")
        self.worker.observe(first, [], model_id="demo", tier="warm")
        self.worker.observe(between, [0.004] * 499, model_id="demo")
        self.worker.count("agentmem_cache_load_bytes", 24e6, model_id="demo")
        self.worker.count("agentmem_cache_evictions", 2, model_id="demo", tier="hot", reason="capacity")
        self.store.count("agentmem_cache_evictions", 1, tier="warm", reason="ttl")
        self.store.count("agentmem_cache_quarantined", 2, reason="truncated")
        self.rpc(self.gateway, "OK", 30)
        self.rpc(self.gateway, "NOT_FOUND", 6)
        self.rpc(self.gateway, "INTERNAL", 4)
        self.gateway.count("process_cpu_seconds", 0.5)
        for code, number in (("200", 10), ("404", 5), ("499", 2), ("503", 3)):
            names = {"route": "/v1/chat/completions", "method": "POST"}
            self.gateway.count("agentmem_http_requests", number, code=code, **names)

    def pages(self) -> Pages:
        return {"gateway": self.gateway.page(), "worker": self.worker.page(), "store": self.store.page()}


def at_work(**instead: Any) -> Any:
    """The overview of two seconds of work, with other pages at their end `instead`."""
    processes = Processes()
    before = processes.pages()
    processes.work()
    after = {**processes.pages(), **instead}
    turns = [
        {"namespace": "default", "agent_id": name, "model_id": "demo", "state": state, "since": since.isoformat()}
        for name, state, since in (("ada", "answering", NOON - timedelta(seconds=3)), ("bob", "waiting", NOON))
    ]
    return {**overview_of(after, before, 2.0, NOON), "turns_running": turns}
