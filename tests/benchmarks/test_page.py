"""Which rounds the benchmark of the page counts, and what it sends in the place of a browser."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from benchmarks import page
from benchmarks.page_views import OVERVIEW, Tab


def rounds(speeds: list[float], **more: Any) -> list[dict[str, Any]]:
    used = {f"{service}_cpu_seconds": 1.0 for service in ("worker", "gateway", "store")}
    return [{"tokens_per_second": speed, **used, **more} for speed in speeds]


def test_rounds_that_ended_before_the_page_was_complete_count_for_none() -> None:
    without = rounds([100.0, 100.0])
    page_asked = {"requests": 140, "overviews": 0, "overview_seconds": []}
    late, in_time = rounds([50.0], late=True, **page_asked), rounds([99.0], late=False, **page_asked)
    asked = {"asked": {"agents": 8, "model": "demo"}}
    found = {**asked, **page.figures({page.WITHOUT: without, page.WITH: late + in_time})}
    assert found["ratio"]["samples"] == [pytest.approx(0.99)]
    assert "mean of 1 pairs" in page.tables(found)[0].note and "1 rounds, left out" in page.tables(found)[0].note
    found = {**asked, **page.figures({page.WITHOUT: without[:1], page.WITH: late})}
    assert page.tables(found)


async def asked(answers: dict[str, Any], view: dict[str, Any]) -> tuple[list[str], Tab]:
    """Return the paths that a tab asks this server for within a second."""
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().removeprefix("/")
        paths.append(path)
        return httpx.Response(200, json=answers[path]) if path in answers else httpx.Response(404)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://page") as http:
        tab = Tab(http, view, {"agent": "a b", "model": "org/m"})
        try:
            async with asyncio.timeout(1):
                await tab.run()
        except TimeoutError:
            pass
    return paths, tab


async def test_a_tab_pages_and_repeats() -> None:
    answers = {
        "v1/agents?page_size=2": {"agents": [1, 2], "next_page_token": "x y"},
        "v1/agents?page_size=2&page_token=x%20y": {"agents": [3], "next_page_token": ""},
        "v1/agents/a%20b?model=org%2Fm": {},
        OVERVIEW: {"models": []},
    }
    opening = [
        {"at": 0.2, "path": "v1/agents?page_size=2"},
        {"at": 0.0, "path": "v1/agents?page_size=2&page_token={token}"},
        {"at": 0.1, "path": "v1/agents/{agent}?model={model}"},
    ]
    paths, tab = await asked(answers, {"opening": opening, "again": [{"every": 0.3, "path": OVERVIEW}]})
    assert [path for path in paths if path != OVERVIEW] == [
        "v1/agents/a%20b?model=org%2Fm",
        "v1/agents?page_size=2",
        "v1/agents?page_size=2&page_token=x%20y",
    ]
    assert paths.count(OVERVIEW) >= 2
    assert tab.agents == 3


@pytest.mark.parametrize("answers", [{}, {OVERVIEW: {"models": None}}])
async def test_a_tab_that_is_not_answered_ends_the_benchmark(answers: dict[str, Any]) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        await asked(answers, {"opening": [{"at": 0.0, "path": OVERVIEW}], "again": []})
    assert failed.group_contains(RuntimeError, match="was answered 404|has nothing of the worker")
