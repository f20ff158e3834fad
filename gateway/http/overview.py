"""GET /v1/overview, for admins, from the processes' pages of metrics."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal, Self

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentmem import layout
from agentmem.addresses import parse_address
from agentmem.v1 import model_pb2
from gateway.api.reports import load_line
from gateway.api.validation import Json
from gateway.edge.authorization import require_admin
from gateway.edge.callers import caller
from gateway.http.charts import point
from gateway.running import RunningTurns
from gateway.scraping import Samples, Service, condition, histogram_quantile, increase, restarted, scrape
from gateway.settings import GatewaySettings

_FRESH_SECONDS: Final = 1.0
"""However many ask, a page is read once in that time."""

_RPCS: Final = ("grpc_code", "grpc_server_handled_total")
_REQUESTS: Final = ("code", "agentmem_http_requests_total")
"""Labels and series of what has ended."""

_FAILED: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
"""Failures of the server; the other codes are the client's."""

OF_WORKER: Final = (
    *("agentmem_build_info", "agentmem_ready", "agentmem_peer_up", "grpc_server_handled_total"),
    *("process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"),
    *("agentmem_num_requests_running", "agentmem_num_requests_waiting", "agentmem_requests_limit"),
    *("agentmem_model_info", "agentmem_cache_agents", "agentmem_pool_blocks", "agentmem_requests_finished_total"),
    *("agentmem_prompt_tokens_total", "agentmem_prompt_tokens_cached_total", "agentmem_generation_tokens_total"),
    *("agentmem_cache_evictions_total", "agentmem_cache_load_bytes_total", "agentmem_cache_store_bytes_total"),
    *(f"agentmem_time_to_first_token_seconds_{part}" for part in ("bucket", "count")),
    *(f"agentmem_inter_token_latency_seconds_{part}" for part in ("bucket", "count")),
)
"""Series asked of the worker, which decodes while it writes its page: half of all lines."""

Pages = Mapping[Service, Samples | str]
"""A page, or why there is none."""


class Overview:
    """Reads the pages, at most once a second for all who ask. Event loop only."""

    def __init__(
        self,
        settings: GatewaySettings,
        registry: CollectorRegistry,
        running: RunningTurns,
        loading: Callable[[], model_pb2.Model | None],
    ) -> None:
        """`loading` is HttpServer's."""
        self._loading = loading
        self._registry = registry
        self._running = running
        self._addresses: dict[Service, str] = {name: metrics_address(settings, name) for name in ("worker", "store")}
        self._reading = asyncio.Lock()
        self._read_at = -math.inf
        self._pages: Pages = {}
        self._answer: Json = {}

    async def serve(self, _: Request) -> Response:
        require_admin(caller())
        return JSONResponse({**await self.read(), "namespace": caller().namespace})

    async def read(self) -> Json:
        """A page that does not answer is no error: it says why."""
        async with self._reading:
            if time.monotonic() - self._read_at > _FRESH_SECONDS:
                # Off the loop, where tokens would wait for some ms.
                own = asyncio.to_thread(lambda: Samples.of(self._registry.collect()))
                pages = await asyncio.gather(own, *(self._page(name) for name in self._addresses))
                found: Pages = dict(zip(("gateway", *self._addresses), pages, strict=True))
                turns = self._running.to_json()  # before the answer's time, which none of them began after
                read_at = time.monotonic()
                seconds = read_at - self._read_at if self._pages else None
                answer = await asyncio.to_thread(overview_of, found, self._pages, seconds, datetime.now(UTC))
                self._say_why(answer["processes"])
                self._answer = {**answer, "charts": point(answer), "turns_running": turns}
                self._pages, self._read_at = found, read_at
            return self._answer

    def _say_why(self, processes: list[Json]) -> None:
        """Say of processes that wait for the load of a model how far it is, which their metrics do not have."""
        if (model := self._loading()) is not None:
            for each in processes:
                if each["state"] == "not_ready":
                    each["why"] = load_line(model)

    async def _page(self, service: Service) -> Samples | str:
        if not (address := self._addresses[service]):
            return f"where the {service}'s page of metrics is, is not known; set --{service}-metrics"
        return await scrape(service, address, OF_WORKER if service == "worker" else ())


def metrics_address(settings: GatewaySettings, service: Literal["worker", "store"]) -> str:
    """Return where a service has its metrics; "" where the port is not known."""
    given, offset = {
        "worker": (settings.worker_metrics, layout.WORKER_METRICS),
        "store": (settings.store_metrics, layout.STORE_METRICS),
    }[service]
    own = parse_address(settings.metrics) if settings.metrics else None
    return given or (str(own.offset(offset)) if own is not None and own.port else "")


def overview_of(pages: Pages, before: Pages, seconds: float | None, now: datetime) -> Json:
    """Rates are since the pages `before`, `seconds` earlier; null where a page is missing or its process has
    restarted.
    """
    found = {service: page if isinstance(page, Samples) else None for service, page in pages.items()}
    gateway, worker, store = (found.get(service) for service in ("gateway", "worker", "store"))
    grown = {service: _Growth.between(before.get(service), page, seconds) for service, page in pages.items()}
    first = "agentmem_time_to_first_token_seconds"
    return {
        "time": now.isoformat(timespec="milliseconds"),
        "interval_seconds": seconds,
        "processes": [_process(service, page, grown[service]) for service, page in pages.items()],
        "models": None if worker is None else _models(worker, grown["worker"]),
        "time_to_first_token": _latencies(grown["worker"].page, first),
        "time_to_first_token_since_start": _latencies(worker or Samples(), first),
        "agents_by_tier": {
            **({} if worker is None else {"hot": worker.count("agentmem_cache_agents")}),
            **({} if store is None else store.counts("tier", "agentmem_cache_agents")),
        },
        "disk": None if store is None else _disk(store),
        "remote": None if store is None else _remote(store),
        "quarantined": None if store is None else store.counts("reason", "agentmem_cache_quarantined_total"),
        "requests_limit": None if worker is None else worker.count("agentmem_requests_limit"),
        "workflows_running": None if gateway is None else gateway.count("agentmem_gateway_workflows_running"),
        "generations_running": (
            None if gateway is None else gateway.counts("door", "agentmem_gateway_num_requests_running")
        ),
    }


@dataclass(frozen=True)
class _Growth:
    """Empty without `seconds`, where the growth is not known."""

    page: Samples = field(default_factory=Samples)
    seconds: float | None = None

    @classmethod
    def between(cls, before: Samples | str | None, after: Samples | str, seconds: float | None) -> Self:
        if not (isinstance(before, Samples) and isinstance(after, Samples)) or restarted(before, after):
            return cls()
        return cls(increase(before, after), seconds)

    def rate(self, amount: float | None) -> float | None:
        return amount / self.seconds if self.seconds and amount is not None else None


def _process(service: Service, page: Samples | str, grown: _Growth) -> Json:
    state, why = condition(page)
    known = page if isinstance(page, Samples) else Samples()
    ended = {**grown.page.counts(*_RPCS), **grown.page.counts(*_REQUESTS)}
    failed = sum(count for code, count in ended.items() if code in _FAILED or code.startswith("5"))
    return {
        "service": service,
        "state": state,
        "why": why,
        "version": next(iter(known.by("version", "agentmem_build_info")), None),
        "start_time_seconds": known.total("process_start_time_seconds"),
        "memory_bytes": known.count("process_resident_memory_bytes"),
        "cpu_seconds": known.total("process_cpu_seconds_total"),
        "cpu_cores": grown.rate(grown.page.total("process_cpu_seconds_total")),
        "requests": known.counts(*_RPCS),
        "http_requests": known.counts(*_REQUESTS),
        "requests_per_second": grown.rate(sum(ended.values())),
        "failures_per_second": grown.rate(failed),
    }


def _models(worker: Samples, grown: _Growth) -> list[Json]:
    names = worker.by("model_id", "agentmem_num_requests_running")
    loaded = worker.by("model_id", "agentmem_model_info")
    return [
        {
            "model_id": name,
            "loaded": name in loaded,
            **_model(worker.where(model_id=name), replace(grown, page=grown.page.where(model_id=name))),
        }
        for name in names
    ]


def _model(now: Samples, grown: _Growth) -> Json:
    prompt = {tier: grown.rate(tokens) for tier, tokens in _prompt_tokens(grown.page).items()}
    return {
        "running": now.count("agentmem_num_requests_running"),
        "waiting": now.count("agentmem_num_requests_waiting"),
        "hot_agents": now.count("agentmem_cache_agents"),
        "pool_blocks": now.counts("state", "agentmem_pool_blocks"),
        "prompt_tokens": _prompt_tokens(now),
        "prompt_tokens_per_second": prompt if grown.seconds else None,
        "generated_tokens": now.count("agentmem_generation_tokens_total"),
        "generated_tokens_per_second": grown.rate(grown.page.count("agentmem_generation_tokens_total")),
        "turns": now.counts("reason", "agentmem_requests_finished_total"),
        "evictions": now.counts("reason", "agentmem_cache_evictions_total"),
        "loaded_bytes": now.count("agentmem_cache_load_bytes_total"),
        "loaded_bytes_per_second": grown.rate(grown.page.count("agentmem_cache_load_bytes_total")),
        "stored_bytes": now.count("agentmem_cache_store_bytes_total"),
        "stored_bytes_per_second": grown.rate(grown.page.count("agentmem_cache_store_bytes_total")),
        "time_to_first_token": _latencies(grown.page, "agentmem_time_to_first_token_seconds"),
        "inter_token_latency": _latency(grown.page, "agentmem_inter_token_latency_seconds"),
    }


def _prompt_tokens(model: Samples) -> dict[str, int]:
    reused = model.counts("tier", "agentmem_prompt_tokens_cached_total")
    return {**reused, "computed": max(0, (model.count("agentmem_prompt_tokens_total") or 0) - sum(reused.values()))}


def _latencies(page: Samples, name: str) -> dict[str, Json]:
    found = {tier: _latency(page.where(tier=tier), name) for tier in page.by("tier", f"{name}_count")}
    return {tier: latency for tier, latency in found.items() if latency}


def _latency(page: Samples, name: str) -> Json | None:
    if not (count := page.count(f"{name}_count")):
        return None
    buckets = {float(bound): n for bound, n in page.by("le", f"{name}_bucket").items()}
    percentiles = {f"p{percent}_seconds": histogram_quantile(percent / 100, buckets) for percent in (50, 95, 99)}
    return {"count": count, **percentiles}


def _disk(store: Samples) -> Json:
    return {
        "bytes": store.counts("kind", "agentmem_cache_disk_bytes"),
        "limit_bytes": store.count("agentmem_cache_disk_limit_bytes"),
        "free_bytes": store.count("agentmem_cache_disk_free_bytes"),
        "free_floor_bytes": store.count("agentmem_cache_disk_free_floor_bytes"),
        "evictions": store.counts("reason", "agentmem_cache_evictions_total"),
    }


def _remote(store: Samples) -> Json | None:
    up = store.total("agentmem_remote_up")
    if up is None:
        return None
    return {
        "up": bool(up),
        "bytes": store.count("agentmem_remote_bytes"),
        "backlog": store.counts("operation", "agentmem_remote_backlog"),
    }
