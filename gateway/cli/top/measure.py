"""Figures from readings: each is compared with the one before. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from agentmem.v1 import agent_pb2, model_pb2
from agentmem.words import tier_name
from gateway.api.reports import state_name
from gateway.cli.text import iso_time
from gateway.cli.top.sources import Reading
from gateway.pages import Page, increase, restarted
from gateway.scraping import Service, condition

Figures = dict[str, Any]
"""What --json writes of an interval, or a part of it: `deploy/top.schema.json` describes all of its names."""

TIERS: Final = ("hot", "warm", "remote", "none")
"""The fastest first."""

_FAILED: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
"""Statuses that say that the server could not, where others say that the client should not have."""


class _Process:
    """A process: its latest page, empty where `why` says why there is none, and the page's growth since the one before.

    `seconds` is the time that it grew in, 0 where there is nothing to compare it with.
    """

    def __init__(self) -> None:
        self.page, self.grown = Page(), Page()
        self.why: str | None = None
        self.seconds = 0.0
        self.restarts = 0
        self._before: Page | None = None

    def update(self, page: Page | str, last: float | None) -> None:
        """Take in the page of a reading, or why there is none; `last` is when the reading before began."""
        self.page, self.why = (Page(), page) if isinstance(page, str) else (page, None)
        self.grown, self.seconds = Page(), 0.0
        if isinstance(page, str):
            return
        if (before := self._before) is not None:
            since = before.at
            if restarted(before, page):
                self.restarts += 1
                # What did not answer at the reading before has done all of this since then, or little earlier.
                since = max(since, last or since)
            self.grown, self.seconds = increase(before, page), page.at - since
        self._before = page

    def value(self, name: str, **labels: str) -> int | None:
        value = self.page.total(name, **labels)
        return None if value is None else int(value)

    def rate(self, name: str, **labels: str) -> float | None:
        grown = self.grown.total(name, **labels)
        return None if grown is None or self.seconds <= 0 else grown / self.seconds


class History:
    """The readings so far. `add` each one in turn."""

    def __init__(self, most_agents: int) -> None:
        self._most_agents = most_agents
        self._last: float | None = None
        self._processes: defaultdict[Service, _Process] = defaultdict(_Process)

    def add(self, reading: Reading) -> Figures:
        """Return the figures of the time since the reading before."""
        for service, page in reading.pages.items():
            self._processes[service].update(page, self._last)
        seconds = 0.0 if self._last is None else reading.at - self._last
        self._last = reading.at
        processes, models, agents = self._processes, reading.models, reading.agents
        recent = [] if agents is None or isinstance(agents, str) else sorted(agents, key=_oldest_last)
        return {
            "time": reading.time.isoformat(timespec="milliseconds"),
            "interval_seconds": seconds,
            "processes": [_figures(service, one, reading.time.timestamp()) for service, one in processes.items()],
            "models": _models(processes["worker"], models),
            "models_error": models if isinstance(models, str) else None,
            "cache": _cache(processes["worker"], processes["store"]),
            "recent_agents": [_agent(agent) for agent in recent[: self._most_agents]],
            "agents_error": agents if isinstance(agents, str) else None,
            "nodes": None if reading.nodes is None or isinstance(reading.nodes, str) else [*map(_node, reading.nodes)],
            "nodes_error": reading.nodes if isinstance(reading.nodes, str) else None,
        }


def silent(figures: Figures) -> bool:
    """Return whether no source answered at all."""
    return figures["models_error"] is not None and all(one["state"] == "down" for one in figures["processes"])


def _figures(service: Service, process: _Process, now: float) -> Figures:
    page, grown, seconds = process.page, process.grown, process.seconds
    started = page.total("process_start_time_seconds")
    ended = {**grown.by("grpc_code", "grpc_server_handled_total"), **grown.by("code", "agentmem_http_requests_total")}
    failed = sum(count for code, count in ended.items() if code in _FAILED or code.startswith("5"))
    state, why = condition(process.why or page)
    return {
        "service": service,
        "state": state,
        "why": why,
        "version": next(iter(page.by("version", "agentmem_build_info")), None),
        "interval_seconds": seconds or None,
        "memory_bytes": process.value("process_resident_memory_bytes"),
        "cpu_cores": process.rate("process_cpu_seconds_total"),
        "uptime_seconds": None if started is None else max(0.0, now - started),
        "restarts": process.restarts,
        "requests_per_second": sum(ended.values()) / seconds if seconds else None,
        "failures_per_second": failed / seconds if seconds else None,
    }


def _models(worker: _Process, listed: list[model_pb2.Model] | str) -> list[Figures]:
    """Return the registered models' figures; those of models on the worker's page where the gateway lists none."""
    if not isinstance(listed, str):
        return [_model(one.model_id, state_name(one), one.is_default, worker) for one in listed]
    loaded = worker.page.by("model_id", "agentmem_model_info")
    known = worker.page.by("model_id", "agentmem_num_requests_running")
    return [_model(name, "loaded" if name in loaded else None, False, worker) for name in known]


def _model(name: str, state: str | None, default: bool, worker: _Process) -> Figures:
    grown = worker.grown
    prompt = worker.rate("agentmem_prompt_tokens_total", model_id=name)
    reused = worker.rate("agentmem_prompt_tokens_cached_total", model_id=name)
    queries = grown.total("agentmem_prefix_cache_queries_total", model_id=name)
    hits = grown.total("agentmem_prefix_cache_hits_total", model_id=name) or 0.0
    firsts = {tier: _latency(grown, "agentmem_time_to_first_token_seconds", model_id=name, tier=tier) for tier in TIERS}
    return {
        "model_id": name,
        "state": state,
        "default": default,
        "running": worker.value("agentmem_num_requests_running", model_id=name),
        "waiting": worker.value("agentmem_num_requests_waiting", model_id=name),
        "requests_per_second": worker.rate("agentmem_requests_finished_total", model_id=name),
        "decode_tokens_per_second": worker.rate("agentmem_generation_tokens_total", model_id=name),
        "prefill_tokens_per_second": None if prompt is None else max(0.0, prompt - (reused or 0.0)),
        "reused_tokens_per_second": reused,
        "hit_rate": min(1.0, hits / queries) if queries else None,
        "time_to_first_token": {tier: latency for tier, latency in firsts.items() if latency},
        "inter_token_latency": _latency(grown, "agentmem_inter_token_latency_seconds", model_id=name),
        "pool_used_blocks": worker.value("agentmem_pool_blocks", model_id=name, state="used"),
        "pool_free_blocks": worker.value("agentmem_pool_blocks", model_id=name, state="free"),
        "hot_agents": worker.value("agentmem_cache_agents", model_id=name),
    }


def _latency(grown: Page, metric: str, **labels: str) -> Figures | None:
    if not (count := grown.total(f"{metric}_count", **labels)):
        return None
    quantiles = {f"p{percent}_seconds": grown.quantile(percent / 100, metric, **labels) for percent in (50, 95, 99)}
    return {"count": int(count), **quantiles}


def _cache(worker: _Process, store: _Process) -> Figures:
    tiers = {**worker.page.by("tier", "agentmem_cache_agents"), **store.page.by("tier", "agentmem_cache_agents")}
    evicted = "agentmem_cache_evictions_total"
    return {
        "agents_by_tier": {tier: int(tiers[tier]) for tier in TIERS if tier in tiers},
        "disk_bytes": _counts(store.page.by("kind", "agentmem_cache_disk_bytes")),
        "disk_limit_bytes": store.value("agentmem_cache_disk_limit_bytes"),
        "disk_free_bytes": store.value("agentmem_cache_disk_free_bytes"),
        "disk_free_floor_bytes": store.value("agentmem_cache_disk_free_floor_bytes"),
        "load_bytes_per_second": worker.rate("agentmem_cache_load_bytes_total"),
        "store_bytes_per_second": worker.rate("agentmem_cache_store_bytes_total"),
        "evictions": {
            f"{tier} {reason}": count
            for grown in (worker.grown, store.grown)
            for tier in grown.by("tier", evicted)
            for reason, count in _counts(grown.by("reason", evicted, tier=tier)).items()
        },
        "quarantined_since_start": _counts(store.page.by("reason", "agentmem_cache_quarantined_total")),
    }


def _counts(counts: Mapping[str, float]) -> dict[str, int]:
    return {name: int(count) for name, count in counts.items() if count >= 1}


def _oldest_last(agent: agent_pb2.Agent) -> tuple[int, str]:
    return -agent.update_time.ToNanoseconds(), agent.key.agent_id


def _agent(agent: agent_pb2.Agent) -> Figures:
    return {
        "agent_id": agent.key.agent_id,
        "model_id": agent.key.model_id,
        "tier": tier_name(agent.tier),
        "tokens": agent.tokens,
        "turns": agent.turns,
        "last_turn": iso_time(agent.update_time),
    }


def _node(node: Mapping[str, Any]) -> Figures:
    """Return the figures of a node, as GET /v1/cluster has it."""
    gone = not node["expires_in"]
    return {
        "name": node["name"],
        "state": "gone" if gone else "draining" if node["draining"] else "ready" if node["ready"] else "not_ready",
        "turns": node["load"],
        "models": sorted(model["model_id"] for model in node["models"] if model["loaded"]),
        "heard_ago_seconds": node["heard_ago"],
        "address": node["address"],
        "version": node["version"],
    }
