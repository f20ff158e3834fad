"""A service's page of metrics, read by a benchmark, and ports for services."""

import asyncio
import secrets
import socket
import time
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.pages import Page, increase

_COUNTED = {
    "queries": "agentmem_prefix_cache_queries_total",
    "generated": "agentmem_generation_tokens_total",
    "bytes_read": "agentmem_cache_load_bytes_total",
    "bytes_written": "agentmem_cache_store_bytes_total",
    "evictions": "agentmem_cache_evictions_total",
}


async def scrape(url: str) -> Page:
    """Read a page. Raises OSError, and ValueError where it is none of metrics."""
    return Page.parse(await asyncio.to_thread(_text, url), time.monotonic())


def counted(before: Page, after: Page) -> dict[str, Any]:
    """What the worker counted of turns between two looks at its page."""
    grown = increase(before, after)

    def by(label: str, name: str) -> dict[str, float]:
        return {key: value for key, value in grown.by(label, name).items() if value}

    return {
        **{key: grown.total(name) or 0.0 for key, name in _COUNTED.items()},
        "hits": by("tier", "agentmem_prefix_cache_hits_total"),
        "lookups": {label: by(label, "agentmem_cache_lookups_total") for label in ("match", "tier")},
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


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
