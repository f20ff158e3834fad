"""Figures of the models, from the worker's page and what the gateway lists."""

from __future__ import annotations

from collections.abc import Sequence

from agentmem.v1 import model_pb2
from gateway.cli.top import names
from gateway.cli.top.figures import HitRate, Latency, ModelFigures, Pool, Tokens
from gateway.cli.top.history import Observation
from gateway.cli.top.interval import Interval
from gateway.cli.top.page import Page
from gateway.cli.top.reading import Silence
from gateway.model_report import state_name


def model_figures(seen: Observation, listed: Sequence[model_pb2.Model] | Silence) -> list[ModelFigures]:
    """Those of all registered models; of those that the worker's page names where the gateway does not list them."""
    page = Page() if isinstance(seen.page, Silence) else seen.page
    if isinstance(listed, Silence):
        loaded = page.values_of("model_id", names.LOADED)
        known = page.values_of("model_id", names.RUNNING)
        return [_model(name, "loaded" if name in loaded else None, False, page, seen.interval) for name in known]
    return [_model(one.model_id, state_name(one), one.is_default, page, seen.interval) for one in listed]


def _model(name: str, state: str | None, default: bool, page: Page, interval: Interval | None) -> ModelFigures:
    return ModelFigures(
        model_id=name,
        state=state,
        default=default,
        running=_gauge(page, names.RUNNING, name),
        waiting=_gauge(page, names.WAITING, name),
        batch_size=_gauge(page, names.BATCH, name),
        requests_per_second=None if interval is None else interval.rate(names.FINISHED, model_id=name),
        decode_tokens_per_second=None if interval is None else interval.rate(names.GENERATED, model_id=name),
        prefill_tokens_per_second=None if interval is None else _prefill_rate(interval, name),
        time_to_first_token={} if interval is None else _first_tokens(interval, name),
        inter_token_latency=None if interval is None else _latency(interval, names.BETWEEN_TOKENS, model_id=name),
        hit_rate=HitRate(
            interval=None
            if interval is None
            else _share(*(interval.increase(n, model_id=name) for n in (names.HITS, names.QUERIES))),
            since_start=_share(page.total(names.HITS, model_id=name), page.total(names.QUERIES, model_id=name)),
        ),
        tokens=_tokens(page, name),
        pool=_pool(page, name),
        hot_agents=_gauge(page, names.AGENTS, name),
    )


def _gauge(page: Page, metric: str, model: str) -> int | None:
    value = page.total(metric, model_id=model)
    return None if value is None else int(value)


def _prefill_rate(interval: Interval, model: str) -> float | None:
    prompt = interval.rate(names.PROMPT, model_id=model)
    return None if prompt is None else max(0.0, prompt - (interval.rate(names.REUSED, model_id=model) or 0.0))


def _first_tokens(interval: Interval, model: str) -> dict[str, Latency]:
    by_tier = {tier: _latency(interval, names.FIRST_TOKEN, model_id=model, tier=tier) for tier in names.TIERS}
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
    prompt = page.total(names.PROMPT, model_id=model)
    if prompt is None:
        return None
    reused = page.by("tier", names.REUSED, model_id=model)
    return Tokens(
        prompt=int(prompt),
        reused={tier: int(count) for tier, count in reused.items() if count},
        generated=int(page.total(names.GENERATED, model_id=model) or 0),
    )


def _pool(page: Page, model: str) -> Pool | None:
    blocks = page.by("state", names.POOL, model_id=model)
    if not blocks:
        return None
    return Pool(used_blocks=int(blocks.get("used", 0)), free_blocks=int(blocks.get("free", 0)))
