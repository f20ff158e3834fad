"""A page of metrics, and free ports."""

import asyncio
import socket

from prometheus_client import CollectorRegistry, Counter

from agentmem.process.exposition import MetricsServer
from benchmarks.scraping import free_ports, scrape


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


def test_ports_in_a_row_are_free() -> None:
    first = free_ports(3)
    for port in range(first, first + 3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
