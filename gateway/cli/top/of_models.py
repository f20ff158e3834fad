"""Figures of the models, from the worker's page and what the gateway lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentmem.v1 import model_pb2
from gateway.cli.top.figures import HitRate, Latency, ModelFigures, Pool, Tokens
from gateway.cli.top.history import Observation
from gateway.cli.top.interval import Interval
from gateway.cli.top.page import Page
from gateway.cli.top.reading import Silence
from gateway.model_report import state_name

TIERS: Final = ("hot", "warm", "remote", "none")
_FIRST: Final = "agentmem_time_to_first_token_seconds"
_BETWEEN: Final = "agentmem_inter_token_latency_seconds"
_PROMPT: Final = "agentmem_prompt_tokens_total"
_CACHED: Final = "agentmem_prompt_tokens_cached_total"
_QUERIES: Final = "agentmem_prefix_cache_queries_total"
_HITS: Final = "agentmem_prefix_cache_hits_total"
_GENERATED: Final = "agentmem_generation_tokens_total"


def model_figures(seen: Observation, listed: Sequence[model_pb2.Model] | Silence) -> list[ModelFigures]:
    """Those of all registered models; of those that the worker's page names where the gateway does not list them."""
    page = Page() if isinstance(seen.page, Silence) else seen.page
    if isinstance(listed, Silence):
        loaded = page.values_of("model_id", "agentmem_model_info")
        names = page.values_of("model_id", "agentmem_num_requests_running")
        return [_model(name, "loaded" if name in loaded else None, False, page, seen.interval) for name in names]
    return [_model(one.model_id, state_name(one), one.is_default, page, seen.interval) for one in listed]


def _model(name: str, state: str | None, default: bool, page: Page, interval: Interval | None) -> ModelFigures:
    return ModelFigures(
        model_id=name,
        state=state,
        default=default,
        running=_gauge(page, "agentmem_num_requests_running", name),
        waiting=_gauge(page, "agentmem_num_requests_waiting", name),
        batch_size=_gauge(page, "agentmem_batch_size", name),
        requests_per_second=None
        if interval is None
        else interval.rate("agentmem_requests_finished_total", model_id=name),
        decode_tokens_per_second=None if interval is None else interval.rate(_GENERATED, model_id=name),
        prefill_tokens_per_second=None if interval is None else _prefill_rate(interval, name),
        time_to_first_token={} if interval is None else _first_tokens(interval, name),
        inter_token_latency=None if interval is None else _latency(interval, _BETWEEN, model_id=name),
        hit_rate=HitRate(
            interval=None
            if interval is None
            else _share(*(interval.increase(n, model_id=name) for n in (_HITS, _QUERIES))),
            since_start=_share(page.total(_HITS, model_id=name), page.total(_QUERIES, model_id=name)),
        ),
        tokens=_tokens(page, name),
        pool=_pool(page, name),
        hot_agents=_gauge(page, "agentmem_cache_agents", name),
    )


def _gauge(page: Page, metric: str, model: str) -> int | None:
    value = page.total(metric, model_id=model)
    return None if value is None else int(value)


def _prefill_rate(interval: Interval, model: str) -> float | None:
    prompt = interval.rate(_PROMPT, model_id=model)
    return None if prompt is None else max(0.0, prompt - (interval.rate(_CACHED, model_id=model) or 0.0))


def _first_tokens(interval: Interval, model: str) -> dict[str, Latency]:
    by_tier = {tier: _latency(interval, _FIRST, model_id=model, tier=tier) for tier in TIERS}
    return {tier: latency for tier, latency in by_tier.items() if latency is not None and latency.count}


def _latency(interval: Interval, metric: str, **labels: str) -> Latency | None:
    count = interval.increase(f"{metric}_count", **labels)
    if count is None:
        return None
    p50, p95, p99 = (interval.quantile(quantile, metric, **labels) for quantile in (0.5, 0.95, 0.99))
    return Latency(count=int(count), p50_seconds=p50, p95_seconds=p95, p99_seconds=p99)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if not whole else min(1.0, (part or 0.0) / whole)


def _tokens(page: Page, model: str) -> Tokens | None:
    prompt = page.total(_PROMPT, model_id=model)
    if prompt is None:
        return None
    reused = page.by("tier", _CACHED, model_id=model)
    return Tokens(
        prompt=int(prompt),
        reused={tier: int(count) for tier, count in reused.items() if count},
        generated=int(page.total(_GENERATED, model_id=model) or 0),
    )


def _pool(page: Page, model: str) -> Pool | None:
    blocks = page.by("state", "agentmem_pool_blocks", model_id=model)
    if not blocks:
        return None
    return Pool(used_blocks=int(blocks.get("used", 0)), free_blocks=int(blocks.get("free", 0)))
