"""A page of metrics, and what grew on it."""

import asyncio
import socket

from prometheus_client import CollectorRegistry, Counter

from agentmem.process.exposition import MetricsServer
from benchmarks.scraping import counted, free_ports, scrape, summed
from gateway.pages import Page


def test_a_page_is_summed_over_labels() -> None:
    registry = CollectorRegistry()
    hits = Counter("hits", "Hits.", ["tier", "model"], registry=registry)
    for tier, model, count in (("hot", "a", 3), ("hot", "b", 4), ("warm", "a", 5)):
        hits.labels(tier, model).inc(count)
    server = MetricsServer("127.0.0.1:0", registry)
    try:
        page = asyncio.run(scrape(f"http://{server.address}/metrics"))
    finally:
        server.stop()
    assert page.total("hits_total") == 12
    assert page.total("hits_total", tier="hot", model="b") == 4
    assert page.by("tier", "hits_total") == {"hot": 7, "warm": 5}


def test_what_is_counted_is_what_has_grown() -> None:
    def page(warm: float, hot: float) -> Page:
        hits, queries = "agentmem_prefix_cache_hits_total", "agentmem_prefix_cache_queries_total"
        text = f"""{hits}{{model_id="a",tier="warm"}} {warm}
{hits}{{model_id="a",tier="hot"}} {hot}
{queries}{{model_id="a"}} {warm + hot}
"""
        return Page.parse(text, 0.0)

    found = counted(page(5, 7), page(25, 7))
    assert found["hits"] == {"warm": 20.0}
    assert (found["queries"], found["bytes_read"], found["lookups"]) == (20.0, 0.0, {"match": {}, "tier": {}})


def test_sums_go_into_what_is_nested() -> None:
    assert summed([{"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 1, "d": 1}}]) == {"a": 2, "b": {"c": 3, "d": 1}}


def test_ports_in_a_row_are_free() -> None:
    first = free_ports(3)
    for port in range(first, first + 3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
