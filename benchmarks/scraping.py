"""A service's page of metrics, read by a benchmark."""

import asyncio
import secrets
import socket
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

Samples = list[Sample]
_COUNTED = {
    "queries": "agentmem_prefix_cache_queries_total",
    "generated": "agentmem_generation_tokens_total",
    "bytes_read": "agentmem_cache_load_bytes_total",
    "bytes_written": "agentmem_cache_store_bytes_total",
    "evictions": "agentmem_cache_evictions_total",
}


async def scrape(url: str) -> Samples:
    """All samples of a page."""
    page = await asyncio.to_thread(_page, url)
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def total(samples: Iterable[Sample], name: str, **labels: str) -> float:
    """The sum of a metric over the labels that are not named."""
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def by_label(samples: Iterable[Sample], name: str, label: str) -> dict[str, float]:
    """The same for each value of a label."""
    found: dict[str, float] = {}
    for each in samples:
        if each.name == name:
            found[each.labels[label]] = found.get(each.labels[label], 0.0) + each.value
    return found


def counted(before: Samples, after: Samples) -> dict[str, Any]:
    """What the worker counted of turns between two looks at its page."""

    def grown(name: str, label: str) -> dict[str, float]:
        old, new = by_label(before, name, label), by_label(after, name, label)
        return {key: value - old.get(key, 0.0) for key, value in new.items() if value != old.get(key, 0.0)}

    return {
        **{key: total(after, name) - total(before, name) for key, name in _COUNTED.items()},
        "hits": grown("agentmem_prefix_cache_hits_total", "tier"),
        "lookups": {label: grown("agentmem_cache_lookups_total", label) for label in ("match", "tier")},
    }


def summed(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of several times together, key by key, also within."""
    found: dict[str, Any] = {}
    for each in counts:
        for key, value in each.items():
            found[key] = summed([found.get(key, {}), value]) if isinstance(value, dict) else found.get(key, 0) + value
    return found


def free_ports(count: int, among: range = range(30_000, 32_000)) -> int:
    """The first of so many ports in a row that nobody listens on now.

    They are below those that the system gives to outgoing connections. Tests of stacks have the 10,000 before them.
    """
    while True:
        first = among.start + secrets.randbelow(len(among) - count)
        if all(_free(port) for port in range(first, first + count)):
            return first


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
