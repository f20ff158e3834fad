"""A stack of two models at work, whose figures are easy to reckon: two readings, two seconds apart."""

from __future__ import annotations

from typing import Any

from agentmem.v1 import agent_pb2, model_pb2, types_pb2
from gateway.cli.top.measure import Figures, History
from gateway.cli.top.sources import Reading

from .pages import NOON, Process, reading

DEMO = model_pb2.Model(model_id="demo", state=model_pb2.MODEL_STATE_LOADED, is_default=True)
BIG = model_pb2.Model(model_id="llama-3.1-8b", state=model_pb2.MODEL_STATE_REGISTERED)
STARTED = NOON.timestamp() - 7200


def agent(name: str, ago: float, tier: types_pb2.Tier.ValueType = types_pb2.TIER_WARM) -> agent_pb2.Agent:
    """An agent whose last turn ended so many seconds before noon."""
    told = agent_pb2.Agent(
        key=types_pb2.AgentKey(namespace="default", agent_id=name, model_id="demo"), tier=tier, tokens=1234, turns=3
    )
    told.update_time.FromNanoseconds(int((NOON.timestamp() - ago) * 1e9))
    return told


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
        """RPCs that ended with a code."""
        names = {"grpc_type": "unary", "grpc_service": "agentmem.v1.AgentService", "grpc_method": "GetAgent"}
        process.count("grpc_server_handled", number, grpc_code=code, **names)

    def _models(self) -> None:
        for model, running in (("demo", 3), ("llama-3.1-8b", 0)):
            self.worker.set("agentmem_num_requests_running", running, model_id=model)
            self.worker.set("agentmem_num_requests_waiting", running // 3, model_id=model)
            self.worker.set("agentmem_batch_size", running, model_id=model)
            self.turns(model, prompt=1000, hot=500, generated=100)
        self.worker.set("agentmem_model_info", 1, model_id="demo")
        self.worker.set("agentmem_pool_blocks", 120, model_id="demo", state="used")
        self.worker.set("agentmem_pool_blocks", 392, model_id="demo", state="free")
        self.worker.set("agentmem_cache_agents", 12, model_id="demo", tier="hot")
        self.worker.count("agentmem_cache_evictions", 2, model_id="demo", tier="hot", reason="capacity")
        for name in ("load", "store"):
            self.worker.count(f"agentmem_cache_{name}_bytes", 1e9, model_id="demo")

    def turns(self, model: str, prompt: int, hot: int, generated: int) -> None:
        """What turns took and gave."""
        for name in ("prompt_tokens", "prefix_cache_queries"):
            self.worker.count(f"agentmem_{name}", prompt, model_id=model)
        for name in ("prompt_tokens_cached", "prefix_cache_hits"):
            self.worker.count(f"agentmem_{name}", hot, model_id=model, tier="hot")
            self.worker.count(f"agentmem_{name}", 0, model_id=model, tier="warm")
        self.worker.count("agentmem_generation_tokens", generated, model_id=model)
        self.worker.count("agentmem_requests_finished", 1, model_id=model, reason="stop")

    def work(self) -> None:
        """What happens between the readings."""
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

    def read(self, at: float, **instead: object) -> Reading:
        """A reading of all that they tell now; or something else."""
        pages = {"gateway": self.gateway.page(at), "worker": self.worker.page(at), "store": self.store.page(at)}
        agents = [agent("ada", 30), agent("bob", 5, types_pb2.TIER_HOT)]
        told: dict[str, object] = {"models": (DEMO, BIG), "agents": agents, **instead}
        return reading(at, {**pages, **told.pop("pages", {})}, **told)  # type: ignore[arg-type, dict-item]


def at_work(most_agents: int = 40, **instead: object) -> Figures:
    """The figures of two seconds of work, the second reading with something else `instead`."""
    processes, history = Processes(), History(most_agents)
    history.add(processes.read(0.0))
    processes.work()
    return history.add(processes.read(2.0, **instead))


def many_agents(number: int) -> list[agent_pb2.Agent]:
    """So many of them."""
    return [agent(f"agent-{index:03}", index) for index in range(number)]


def node(name: str, **instead: object) -> dict[str, Any]:
    """A node, as GET /v1/cluster lists it."""
    model = {"model_id": "demo", "fingerprint": "f1", "loaded": True}
    other = {"model_id": "llama-3.1-8b", "fingerprint": "", "loaded": False}
    told = {
        "name": name, "epoch": 7, "address": f"{name}.local:50061", "ready": True, "draining": False, "load": 3,
        "models": [model, other], "expires_in": 9.6, "heard_ago": 0.4, "version": "0.1.0", "schema": 2, "silent": False,
    }  # fmt: skip
    return {**told, **instead}


NODES = [
    node("a"),
    node("b", draining=True, load=1, heard_ago=1.5),
    node("c", ready=False, load=0, models=[], expires_in=0, heard_ago=300.0),
]
