"""Long runs and long memories in the page: what is done for each turn does not grow with the turns before it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from agentmem.v1 import inference_pb2
from tests.gateway.background import served
from tests.gateway.scripted import delta, finished, started
from tests.system.page.browser import opened
from tests.system.page.test_page_workflows import run, state
from tests.system.page.test_page_workflows_hostile import TWO

pytestmark = pytest.mark.asyncio(loop_scope="session")

TURNS, ROUNDS, REMEMBERED = 2000, 50, 60
AT_ONCE, FOLLOWED = 100, 8
"""Turns that static/soon.js draws at once, and last rounds that workflows.css always lays out."""

BATCHES = """
window.batches = [];
new MutationObserver((changes) => {
  const added = changes.flatMap(({addedNodes}) => [...addedNodes]).filter((node) => node instanceof Element);
  window.batches.push(added.reduce((sum, e) => sum + e.matches('article') + e.querySelectorAll('article').length, 0));
}).observe(document, {childList: true, subtree: true});
"""
"""Counts the turns that come into the page at once."""
LAID_OUT = "all => all.filter((e) => e.checkVisibility({contentVisibilityAuto: true})).length"


class Calls:
    """How often the page's functions were called, by name."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def of(self, module: str) -> Counter[str]:
        """Return a module's calls since the last time it was asked."""
        told = await self._session.send("Profiler.takePreciseCoverage")
        found: Counter[str] = Counter()
        for script in told["result"]:
            if script["url"].endswith(f"/ui/{module}"):
                for function in script["functions"]:
                    found[function["functionName"]] += function["ranges"][0]["count"]
        return found


@asynccontextmanager
async def counted(page: Page) -> AsyncIterator[Calls]:
    """Calls of the page's functions while the block runs."""
    session = await page.context.new_cdp_session(page)
    await session.send("Profiler.enable")
    await session.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    yield Calls(session)
    await session.detach()


def long_run(turns: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run of two agents that has ended, and the events of its log."""
    names = ("marco", "lena")
    agents = [{"name": name, "persists": False, "key": {"agent_id": name, "model_id": "demo"}} for name in names]
    workflow = {"workflow_id": "w", "name": "long", "state": "running", "phase": "talk", "agents": agents, "error": ""}
    told: list[dict[str, Any]] = [{"started": {"workflow": workflow}}]
    for turn in range(turns):
        number, speaker, other = 1 + turn // 2, names[turn % 2], names[1 - turn % 2]
        place = {"phase": "talk", "round": number}
        if turn % 2 == 0:
            told.append({"phase_started": {**place, "agents": names, "topology": "in_turn", "channel": "public"}})
        spoke: dict[str, Any] = {**place, "agent_id": speaker, "text": f"Turn {turn}. " * 20, "reason": "stop"}
        spoke["usage"] = {"prompt_tokens": 60, "completion_tokens": 20, "cached": {"hot": 40}}
        spoke["cache"] = {"match": "extend", "cached": {"hot": 40}, "prompt_tokens": 60, "miss_reason": None}
        spoke |= {"listeners": [other], "bystanders": [], "channel": "public", "step": turn % 2}
        told.append({"agent_spoke": {**spoke, "timings": {}, "replayed": False}})
    ended = {**workflow, "state": "succeeded"}
    events = [{"sequence": at, "time": "2026-01-01T00:00:00Z", **each} for at, each in enumerate(told, 1)]
    return ended, [*events, {"sequence": len(events), "finished": {"workflow": ended}}]


@asynccontextmanager
async def long_run_opened(browser: Browser, script: str) -> AsyncIterator[Page]:
    """The page of a long run, which a script was there before."""
    workflow, log = long_run(TURNS)
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in log)
    with served() as gateway:
        async with opened(browser, gateway.url) as page:
            await page.add_init_script(script)
            await page.route("**/v1/workflows/w", lambda route: route.fulfill(json={"workflow": workflow}))
            events = {"content_type": "text/event-stream", "body": lines}
            await page.route("**/v1/workflows/w/events*", lambda route: route.fulfill(**events))
            await page.goto(f"{gateway.url}/ui/#/workflows/run/w")
            await page.reload()
            yield page


@pytest.mark.slow
async def test_a_run_of_thousands_of_turns_is_drawn_bit_by_bit(browser: Browser) -> None:
    async with long_run_opened(browser, BATCHES) as page:
        turns = page.locator("article.turn")
        await expect(turns.first).to_contain_text("Turn 0.")
        await expect(turns).to_have_count(TURNS, timeout=60_000)
        batches = await page.evaluate("window.batches")
        assert sum(batches) == TURNS and max(batches) <= AT_ONCE
        assert await turns.evaluate_all(LAID_OUT) <= 2 * FOLLOWED + AT_ONCE
        box = page.get_by_role("region", name="What was said")
        await box.evaluate("e => e.scrollTo(0, e.scrollHeight)")
        await expect(turns.last).to_be_in_viewport()
        await expect(turns.last).to_contain_text(f"Turn {TURNS - 1}.")


@pytest.mark.slow
async def test_a_run_that_is_followed_draws_what_is_new(browser: Browser) -> None:
    async def slow(_: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield started()
        for word in ("One ", "two ", "three."):
            yield delta(word)
            await asyncio.sleep(0.02)  # some frames
        yield finished()

    with served() as gateway:
        gateway.worker.script = slow
        async with opened(browser, gateway.url, "#/workflows/new") as page, counted(page) as calls:
            await run(page, TWO.replace("    channel", f"    rounds: {ROUNDS}\n    channel"))
            await expect(state(page)).to_have_text("succeeded", timeout=60_000)
            await expect(page.locator("article.turn")).to_have_count(2 * ROUNDS)
            found = await calls.of("views/workflows/lanes.js")
            # A round is another one when it begins, and when each of two speaks and is heard.
            assert ROUNDS <= found["Round"] <= 5 * ROUNDS
            assert found["BesideEachOther"] <= 5 * 2 * ROUNDS
            assert found["Done"] <= 3 * 2 * ROUNDS
            box = page.get_by_role("region", name="What was said")
            assert await box.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 60
