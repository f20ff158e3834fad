"""Figures of KV beyond the pool, and where agents' KV is."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.cli.top import names
from gateway.cli.top.figures import StorageFigures
from gateway.cli.top.history import Observation
from gateway.cli.top.page import Page
from gateway.cli.top.reading import Silence


def storage_figures(worker: Observation, store: Observation) -> StorageFigures:
    """Those of loads, stores, the disk, and what was dropped."""
    page, both = _page(store), (worker, store)
    return StorageFigures(
        disk_bytes=_whole(page.by("kind", names.DISK)),
        disk_limit_bytes=_bytes(page, names.DISK_LIMIT),
        disk_free_bytes=_bytes(page, names.DISK_FREE),
        disk_free_floor_bytes=_bytes(page, names.DISK_FLOOR),
        load_bytes_per_second=_rate(worker, names.LOADS),
        store_bytes_per_second=_rate(worker, names.STORES),
        evictions=_merged(*(_evicted(seen) for seen in both)),
        evictions_since_start=_merged(*(_evicted_ever(_page(seen)) for seen in both)),
        quarantined=_counted(store.interval.increases("reason", names.QUARANTINED) if store.interval else {}),
        quarantined_since_start=_counted(page.by("reason", names.QUARANTINED)),
    )


def agents_by_tier(worker: Observation, store: Observation) -> dict[str, int]:
    """The worker's hot agents, and the store's by the tier that has their KV. Tiers nobody tells of are absent."""
    tiers = {**_page(worker).by("tier", names.AGENTS), **_page(store).by("tier", names.AGENTS)}
    return _whole({tier: tiers[tier] for tier in names.TIERS if tier in tiers})


def _page(seen: Observation) -> Page:
    return Page() if isinstance(seen.page, Silence) else seen.page


def _bytes(page: Page, metric: str) -> int | None:
    value = page.total(metric)
    return None if value is None else int(value)


def _rate(seen: Observation, metric: str) -> float | None:
    return None if seen.interval is None else seen.interval.rate(metric)


def _evicted(seen: Observation) -> dict[str, dict[str, int]]:
    if seen.interval is None:
        return {}
    tiers = seen.interval.increases("tier", names.EVICTIONS)
    return {tier: _counted(seen.interval.increases("reason", names.EVICTIONS, tier=tier)) for tier in tiers}


def _evicted_ever(page: Page) -> dict[str, dict[str, int]]:
    return {
        tier: _counted(page.by("reason", names.EVICTIONS, tier=tier))
        for tier in page.values_of("tier", names.EVICTIONS)
    }


def _merged(*parts: Mapping[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {tier: counts for part in parts for tier, counts in part.items() if counts}


def _counted(counts: Mapping[str, float]) -> dict[str, int]:
    return {name: int(count) for name, count in counts.items() if count >= 1}


def _whole(values: Mapping[str, float]) -> dict[str, int]:
    return {name: int(value) for name, value in values.items()}
