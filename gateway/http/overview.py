"""GET /v1/overview: what the processes count, for admins; from their pages of metrics, as `agentmem top` has it."""

import asyncio
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from agentmem import layout
from agentmem.addresses import parse_address
from gateway.api.validation import Json
from gateway.edge.authorization import require_admin
from gateway.edge.callers import caller
from gateway.pages import Page
from gateway.running import RunningTurns
from gateway.scraping import Service, condition, read_page
from gateway.settings import GatewaySettings

_FRESH_SECONDS: Final = 1.0
"""How old a reading may be that is returned again: however many ask, a page is read once in that time."""

OF_WORKER: Final = (
    *("agentmem_build_info", "agentmem_ready", "agentmem_peer_up", "grpc_server_handled_total"),
    *("process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"),
    *("agentmem_num_requests_running", "agentmem_num_requests_waiting", "agentmem_requests_limit"),
    *("agentmem_model_info", "agentmem_cache_agents", "agentmem_pool_blocks", "agentmem_requests_finished_total"),
    *("agentmem_prompt_tokens_total", "agentmem_prompt_tokens_cached_total", "agentmem_generation_tokens_total"),
    *("agentmem_cache_evictions_total", "agentmem_cache_load_bytes_total", "agentmem_cache_store_bytes_total"),
    *(f"agentmem_time_to_first_token_seconds_{part}" for part in ("bucket", "count", "sum")),
    *(f"agentmem_inter_token_latency_seconds_{part}" for part in ("bucket", "count", "sum")),
)
"""What is asked of the worker, which decodes while it writes its page: half of the lines of all."""

_NOT_SHOWN: Final = re.compile(
    r"^(?:#.*|grpc_server_(?!handled_total).*|grpc_server_handled_total.* 0\.0)\n", re.MULTILINE
)
"""Lines of which the overview has nothing: nine in ten, most of them zeros of RPCs by status."""

Pages = Mapping[Service, Page | str]
"""Of each process its page, or why there is none."""


@dataclass(frozen=True)
class OverviewEndpoint:
    """The endpoint as an ASGI application."""

    overview: "Overview"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        require_admin(caller())
        answer = await self.overview.read()
        await JSONResponse({**answer, "namespace": caller().namespace})(scope, receive, send)


class Overview:
    """Reads the pages, and tells all who ask within a second the same. Event loop only."""

    def __init__(self, settings: GatewaySettings, registry: CollectorRegistry, running: RunningTurns) -> None:
        self._registry = registry
        self._running = running
        self._addresses: dict[Service, str] = {
            "worker": settings.worker_metrics or _behind(settings.metrics, layout.WORKER_METRICS),
            "store": settings.store_metrics or _behind(settings.metrics, layout.STORE_METRICS),
        }
        self._reading = asyncio.Lock()
        self._read_at = -math.inf
        self._answer: Json = {}

    async def read(self) -> Json:
        """Return the overview, at most a second old. A page that does not answer is no error: it says why."""
        async with self._reading:
            if time.monotonic() - self._read_at > _FRESH_SECONDS:
                pages = await asyncio.gather(self._own_page(), *(self._page(name) for name in self._addresses))
                found: Pages = dict(zip(("gateway", *self._addresses), pages, strict=True))
                self._answer = await asyncio.to_thread(overview_of, found, datetime.now(UTC)) | {
                    "turns_running": self._running.to_json()
                }
                self._read_at = time.monotonic()
            return self._answer

    async def _own_page(self) -> Page:
        def read() -> Page:
            return Page.parse(_shown_lines(generate_latest(self._registry).decode()), time.monotonic())

        return await asyncio.to_thread(read)  # some ms, in which tokens would wait

    async def _page(self, service: Service) -> Page | str:
        if not (address := self._addresses[service]):
            return f"where the {service}'s page of metrics is, is not known; set --{service}-metrics"
        return await read_page(service, address, OF_WORKER if service == "worker" else (), _shown_lines)


def _shown_lines(text: str) -> str:
    return _NOT_SHOWN.sub("", text)


def _behind(metrics: str, offset: int) -> str:
    """Return the address that is so far behind the gateway's; empty where that has no port that is known."""
    address = parse_address(metrics) if metrics else None
    return str(address.offset(offset)) if address is not None and address.port else ""


def overview_of(pages: Pages, now: datetime) -> Json:
    """Return what pages say. Counters are since the start of their process: who asks twice has the difference."""
    found = {service: page if isinstance(page, Page) else None for service, page in pages.items()}
    gateway, worker, store = (found.get(service) for service in ("gateway", "worker", "store"))
    return {
        "time": now.isoformat(timespec="milliseconds"),
        "processes": [_process(service, page) for service, page in pages.items()],
        "models": None if worker is None else _models(worker),
        "agents_by_tier": {
            **({} if worker is None else {"hot": _count(worker, "agentmem_cache_agents")}),
            **({} if store is None else _counts(store, "tier", "agentmem_cache_agents")),
        },
        "disk": None if store is None else _disk(store),
        "remote": None if store is None else _remote(store),
        "quarantined": None if store is None else _counts(store, "reason", "agentmem_cache_quarantined_total"),
        "requests_limit": None if worker is None else _count(worker, "agentmem_requests_limit"),
        "workflows_running": None if gateway is None else _count(gateway, "agentmem_gateway_workflows_running"),
        "generations_running": (
            None if gateway is None else _counts(gateway, "door", "agentmem_gateway_num_requests_running")
        ),
    }


def _process(service: Service, page: Page | str) -> Json:
    state, why = condition(page)
    known = page if isinstance(page, Page) else Page()
    return {
        "service": service,
        "state": state,
        "why": why,
        "version": next(iter(known.by("version", "agentmem_build_info")), None),
        "start_time_seconds": known.total("process_start_time_seconds"),
        "memory_bytes": _count(known, "process_resident_memory_bytes"),
        "cpu_seconds": known.total("process_cpu_seconds_total"),
        "requests": _counts(known, "grpc_code", "grpc_server_handled_total"),
        "http_requests": _counts(known, "code", "agentmem_http_requests_total"),
    }


def _models(worker: Page) -> list[Json]:
    names = worker.by("model_id", "agentmem_num_requests_running")
    loaded = worker.by("model_id", "agentmem_model_info")
    return [{"model_id": name, "loaded": name in loaded, **_model(_Of(worker, name))} for name in names]


@dataclass(frozen=True)
class _Of:
    """What of the worker's page is about one model."""

    page: Page
    model_id: str

    def count(self, name: str, **labels: str) -> int | None:
        return _count(self.page, name, model_id=self.model_id, **labels)

    def counts(self, label: str, name: str, **labels: str) -> dict[str, int]:
        return _counts(self.page, label, name, model_id=self.model_id, **labels)

    def histogram(self, name: str, **labels: str) -> Json | None:
        """Return cumulative counts by upper bounds, null for infinity: their differences make quantiles."""
        page, labels = self.page, {"model_id": self.model_id, **labels}
        if page.total(f"{name}_count", **labels) is None:
            return None
        buckets = sorted((float(bound), int(n)) for bound, n in page.by("le", f"{name}_bucket", **labels).items())
        return {
            "buckets": [[None if math.isinf(bound) else bound, n] for bound, n in buckets],
            "count": _count(page, f"{name}_count", **labels),
            "sum_seconds": page.total(f"{name}_sum", **labels),
        }


def _model(of: _Of) -> Json:
    first = "agentmem_time_to_first_token_seconds"
    prompt = of.count("agentmem_prompt_tokens_total")
    reused = of.counts("tier", "agentmem_prompt_tokens_cached_total")
    return {
        "running": of.count("agentmem_num_requests_running"),
        "waiting": of.count("agentmem_num_requests_waiting"),
        "hot_agents": of.count("agentmem_cache_agents"),
        "pool_blocks": of.counts("state", "agentmem_pool_blocks"),
        "prompt_tokens": {**reused, "computed": max(0, (prompt or 0) - sum(reused.values()))},
        "generated_tokens": of.count("agentmem_generation_tokens_total"),
        "turns": of.counts("reason", "agentmem_requests_finished_total"),
        "evictions": of.counts("reason", "agentmem_cache_evictions_total"),
        "loaded_bytes": of.count("agentmem_cache_load_bytes_total"),
        "stored_bytes": of.count("agentmem_cache_store_bytes_total"),
        "time_to_first_token": {
            tier: of.histogram(first, tier=tier) for tier in of.page.by("tier", f"{first}_count", model_id=of.model_id)
        },
        "inter_token_latency": of.histogram("agentmem_inter_token_latency_seconds"),
    }


def _disk(store: Page) -> Json:
    return {
        "bytes": _counts(store, "kind", "agentmem_cache_disk_bytes"),
        "limit_bytes": _count(store, "agentmem_cache_disk_limit_bytes"),
        "free_bytes": _count(store, "agentmem_cache_disk_free_bytes"),
        "free_floor_bytes": _count(store, "agentmem_cache_disk_free_floor_bytes"),
        "evictions": _counts(store, "reason", "agentmem_cache_evictions_total"),
    }


def _remote(store: Page) -> Json | None:
    """Return what there is of the object store; None where none is configured."""
    up = store.total("agentmem_remote_up")
    if up is None:
        return None
    return {
        "up": bool(up),
        "bytes": _count(store, "agentmem_remote_bytes"),
        "backlog": _counts(store, "operation", "agentmem_remote_backlog"),
    }


def _count(page: Page, name: str, **labels: str) -> int | None:
    value = page.total(name, **labels)
    return None if value is None else int(value)


def _counts(page: Page, label: str, name: str, **labels: Any) -> dict[str, int]:
    return {value: int(count) for value, count in page.by(label, name, **labels).items()}
