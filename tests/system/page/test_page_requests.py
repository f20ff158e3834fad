"""The page asks for what `agentmem bench page` asks for, and not more often.

With AGENTMEM_SCREENSHOTS=1 what Chromium asked for is written to the file that the benchmark reads.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Request

from benchmarks.page_views import OVERVIEW, RECORDED, recorded
from tests.gateway.background import served
from tests.system.page.browser import documenting, opened
from tests.system.page.test_page_hostile import agent
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENT, AGENTS = "asked for", 1000
POLLS = 2
QUIET_SECONDS = 4.5
ICON = "ui/icon.svg"
"""A browser without a window, such as npm's, does not ask for it."""


async def watched(browser: Browser, url: str, place: str, there: str, repeats: str = "") -> dict[str, Any]:
    """Return all that a view asks for: what it begins with, and what it asks for again and again.

    `repeats` is what is waited for; without it the view is watched for QUIET_SECONDS, in which it should ask nothing.
    """
    asked: list[tuple[float, str]] = []
    ended: dict[str, list[float]] = {}

    def begun(request: Request) -> None:
        path = (
            request.url.removeprefix(f"{url}/").replace(quote(AGENT), "{agent}").replace("model=demo", "model={model}")
        )
        asked.append((time.monotonic(), path))

    def over(request: Request) -> None:
        ended.setdefault(request.url.removeprefix(f"{url}/"), []).append(time.monotonic())

    async with opened(browser, url, "nothing") as page:  # an empty page of that origin
        page.on("request", begun)
        page.on("requestfinished", over)
        await page.goto(f"{url}/ui/{place}")
        await page.wait_for_selector(there)
        if repeats:
            async with asyncio.timeout(60):
                while sum(path == repeats for _, path in asked) <= POLLS:
                    await page.wait_for_event("requestfinished")
        else:
            await asyncio.sleep(QUIET_SECONDS)
        await page.goto("about:blank")
    opening: list[dict[str, Any]] = []
    again: dict[str, list[float]] = {}
    for at, path in asked:
        bare, _, token = path.partition("page_token=")
        path = f"{bare}page_token={{token}}" if token else path
        if any(each["path"] == path for each in opening) and not token:
            again.setdefault(path, []).append(at)
        else:
            opening.append({"at": round(at - asked[0][0], 3), "path": path})
    pauses = {
        path: min(at - max(end for end in ended[path] if end < at) for at in times) for path, times in again.items()
    }
    return {"opening": opening, "again": [{"every": pause, "path": path} for path, pause in pauses.items()]}


def paths(view: dict[str, Any]) -> tuple[list[str], list[str]]:
    opening, again = ([each["path"] for each in view[part]] for part in ("opening", "again"))
    return sorted(set(opening) - {ICON}), sorted(again)


@pytest.mark.slow
async def test_the_benchmark_asks_for_what_chromium_asks_for(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say(AGENT, "The colour of the boat is green.", max_tokens=20)
    found = {
        "overview": await watched(browser, live.url, "#/overview", ".uplot", OVERVIEW),
        "agent": await watched(browser, live.url, f"#/agents/demo/{quote(AGENT)}", ".strip"),
    }
    with served() as gateway:
        gateway.worker.page = 500
        gateway.worker.agents = [agent(f"agent-{number:05}") for number in range(AGENTS)]
        found["agents"] = await watched(browser, gateway.url, "#/agents", "tbody tr[data-row]")
    assert {path for view in found.values() for path in paths(view)[1]} == {OVERVIEW}
    [again] = found["overview"]["again"]
    if documenting():
        again["every"] = round(again["every"], 1)
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    kept = recorded()
    assert {name: paths(view) for name, view in found.items()} == {name: paths(view) for name, view in kept.items()}
    assert again["every"] >= kept["overview"]["again"][0]["every"] - 0.1, "the page asks more often than the benchmark"
