"""Pages, what happened between two of them, quantiles, and what is said of pages that cannot be read."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.process.exposition import LATENCY_BUCKETS
from gateway import scraping
from gateway.scraping import Samples, histogram_quantile, increase, restarted, scrape
from tests.gateway.http.example import Process

TEXT = """\
# HELP agentmem_prefix_cache_hits_total Prompt tokens whose KV was reused.
# TYPE agentmem_prefix_cache_hits_total counter
agentmem_prefix_cache_hits_total{model_id="a",tier="hot"} 10
agentmem_prefix_cache_hits_total{model_id="a",tier="warm"} 4
agentmem_prefix_cache_hits_total{model_id="b \\"c\\"",tier="hot"} 1
# TYPE agentmem_pool_blocks gauge
agentmem_pool_blocks{state="free"} NaN
agentmem_pool_blocks{state="used"} 3
# TYPE agentmem_inter_token_latency_seconds histogram
agentmem_inter_token_latency_seconds_bucket{le="1.0"} 2
agentmem_inter_token_latency_seconds_bucket{le="+Inf"} 2
agentmem_inter_token_latency_seconds_sum 1.5
agentmem_inter_token_latency_seconds_count 2
"""
HITS = "agentmem_prefix_cache_hits_total"


def test_series_are_found_by_some_of_their_labels_and_added_up() -> None:
    page = Samples.parse(TEXT)
    assert page.total(HITS) == 15
    assert page.where(model_id="a").total(HITS) == 14
    assert page.where(model_id="a", tier="warm").total(HITS) == 4
    assert page.where(model_id="z").total(HITS) is None
    assert page.by("tier", HITS) == {"hot": 11, "warm": 4}
    assert page.where(model_id='b "c"').by("tier", HITS) == {"hot": 1}
    assert page.total("agentmem_pool_blocks") == 3  # what is no number is not there


@pytest.mark.parametrize(
    "text",
    ["", "# only a comment\n", "<!DOCTYPE html>\n<html></html>\n", "{}", "a b c d e\n", '{"error": 1}', "x{ 1\n"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Samples.parse(text)


@given(st.data())
def test_nor_does_a_damaged_page(data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(TEXT)))
    end = data.draw(st.integers(begin, len(TEXT)))
    damaged = TEXT[:begin] + data.draw(st.text(max_size=5)) + TEXT[end:]
    with contextlib.suppress(ValueError):
        Samples.parse(damaged)


amounts = st.floats(0, 1e12)


@given(st.lists(st.lists(amounts.map(round), max_size=5), min_size=1, max_size=6))
def test_increases_add_up_to_what_happened(readings: list[list[int]]) -> None:
    process = Process()
    process.count("agentmem_prefix_cache_hits", 0, tier="hot")
    before, seen = process.page(), 0.0
    for amounts_since in readings:
        for amount in amounts_since:
            process.count("agentmem_prefix_cache_hits", amount, tier="hot")
        after = process.page()
        seen += increase(before, after).total(HITS) or 0.0
        before = after
    assert seen == sum(map(sum, readings))


def page(count: int | None, started: float | None) -> Samples:
    process = Process(started)
    process.set("agentmem_num_requests_running", 1)
    if count is not None:
        process.count("agentmem_prefix_cache_hits", count, model_id="a", tier="hot")
    return process.page()


@given(amounts.map(round), amounts.map(round))
def test_a_restarted_process_counts_from_zero(before: int, after: int) -> None:
    assert increase(page(before, 5.0), page(after, 6.0)).total(HITS) == after
    assert increase(page(before, 5.0), page(after, 5.0)).total(HITS) == (after - before if after >= before else after)


def test_restarts_are_known_by_the_start_or_by_what_became_smaller() -> None:
    assert restarted(page(3, 5.0), page(3, 6.0))
    assert not restarted(page(3, 5.0), page(3, 5.0))
    assert restarted(page(3, None), page(2, None))
    assert not restarted(page(2, None), page(3, None))
    assert not restarted(page(3, None), page(None, None))  # a series that went


BOUNDS = (*LATENCY_BUCKETS, math.inf)
quantiles = st.floats(0, 1)


@pytest.mark.parametrize(
    ("quantile", "counts", "answer"),
    [
        (0.5, {1.0: 10, 2.0: 10, math.inf: 10}, 0.5),  # spread from 0 to 1
        (0.5, {1.0: 0, 2.0: 10, math.inf: 10}, 1.5),
        (0.9, {1.0: 5, 2.0: 10, math.inf: 10}, 1.8),
        (0.99, {1.0: 5, 2.0: 5, math.inf: 10}, 2.0),  # beyond the highest bound
        (0.0, {1.0: 0, 2.0: 4, math.inf: 4}, 1.0),
        (1.0, {1.0: 1, 2.0: 4, math.inf: 4}, 2.0),
        (0.5, {1.0: 0, math.inf: 0}, None),
        (0.5, {math.inf: 3}, None),
        (0.5, {1.0: 3}, None),
        (0.5, {}, None),
    ],
)
def test_as_prometheus_has_it(quantile: float, counts: dict[float, float], answer: float | None) -> None:
    assert histogram_quantile(quantile, counts) == (None if answer is None else pytest.approx(answer))


@given(st.dictionaries(st.sampled_from(BOUNDS), st.floats(0, 1e9)), quantiles)
def test_counts_that_were_read_while_they_grew_give_no_nonsense(counts: dict[float, float], quantile: float) -> None:
    found = histogram_quantile(quantile, counts)
    assert found is None or 0 <= found <= max(bound for bound in counts if math.isfinite(bound)) * (1 + 1e-9)


NOT_THAT = ", not the store's; give the address that it really has"
GATEWAYS = b'agentmem_build_info{service="gateway",version="1"} 1\n'


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """An HTTP server that answers so; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert await scrape("worker", address) == f"{address} does not answer within 0.2 seconds"
    assert await scrape("worker", address) == f"nothing listens at {address}"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"not found", "ADDRESS answers with status 404; is that its page of metrics?"),
        (200, b"<html></html>", "what ADDRESS answers is no page of metrics; another program may have its port"),
        (200, b"process_start_time_seconds 1\n", f"ADDRESS has another program's page{NOT_THAT}"),
        (200, GATEWAYS, f"ADDRESS has the gateway's page{NOT_THAT}"),
        (200, b"", "what ADDRESS answers has no metrics; another program may have its port"),
        (200, b"up\xff 1\n", "what ADDRESS answers is no page of metrics; another program may have its port"),
    ],
)
async def test_what_is_no_page_is_said(status: int, body: bytes, why: str) -> None:
    with answering(status, body) as address:
        assert await scrape("store", address) == why.replace("ADDRESS", address)
