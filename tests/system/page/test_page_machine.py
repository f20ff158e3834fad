"""The page shows the machine: its processes, their metrics and its models."""

from __future__ import annotations

import asyncio
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from agentmem.v1 import model_pb2, types_pb2
from tests.gateway.background import served
from tests.system.client import Client
from tests.system.page.browser import documenting, opened, screenshot
from tests.system.stack import Stack

ENDLESS: Any = {"sampling": types_pb2.Sampling(ignore_eos=True)}

COLOURS = """canvas => {
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const found = new Set();
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] === 255) found.add(data.slice(at, at + 3).join());
    }
    return [...found].map((each) => each.split(',').map(Number));
}"""

DRAWN = """canvas => {
    const {data, width} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let first = width;
    for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.slice(at, at + 4);
        if (alpha > 200 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) {
            first = Math.min(first, (at / 4) % width);
        }
    }
    return {first, width};
}"""
"""How far from the left the first coloured pixel is."""

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def talk(client: Client) -> None:
    while True:
        await client.say("talks", "Tell me all.", max_tokens=200, **ENDLESS)


@pytest.mark.slow
async def test_the_overview_goes_on_while_it_is_open(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("counted", "The colour of the boat is green.", max_tokens=20)
    async with opened(browser, live.url, "#/overview") as page:
        processes = page.get_by_role("region", name="Processes").locator("tbody tr")
        await expect(processes).to_have_count(3)
        for row in await processes.all():
            await expect(row).to_contain_text("up")
        await expect(page.locator(".uplot")).to_have_count(5)
        shown = page.locator("figcaption").filter(has_text="Cache hit").locator("strong").first
        shares, clock = set(), asyncio.get_running_loop().time
        enough = clock() + (240 if documenting() else 0)  # a picture has some points
        async with asyncio.timeout(300 if documenting() else 30):  # until a turn has fallen between two readings
            while clock() < enough or not any(re.fullmatch(r"[1-9]\d*%", each) for each in shares):
                await client.say("counted", "What is the colour of the boat?", max_tokens=20)
                shares.add(await shown.inner_text())
                await asyncio.sleep(2 if documenting() else 0)
        hot = page.get_by_role("region", name="By tier").locator("tbody tr").first
        await expect(hot.locator("td").nth(1)).not_to_have_text("0")
        await expect(hot.locator("td").nth(2)).to_have_text(re.compile("ms|s"))
        drawn = await page.locator(".canvas canvas").first.evaluate(COLOURS)
        assert any(red > blue + 80 for red, _, blue in drawn), "the line of the hot tier has its colour"
        talking = asyncio.create_task(talk(await live.client("gateway")))
        now = page.get_by_role("region", name="Running now").locator("tbody tr")
        await expect(now.filter(has_text="answering")).to_contain_text("talks", timeout=30_000)
        await screenshot(page, "overview")
        talking.cancel()
        await expect(now).to_have_count(0)
        await expect(page.get_by_text("No turn.")).to_be_visible()


@pytest.mark.slow
async def test_charts_begin_with_what_the_gateway_kept(browser: Browser) -> None:
    """Its clock may differ from the browser's: the window ends with the last point."""
    with served() as gateway:
        begun = datetime.now(UTC) - timedelta(minutes=20)
        points = [
            {
                "time": (begun + timedelta(seconds=5 * number)).isoformat(timespec="milliseconds"),
                "prompt_tokens_share": {"hot": 0.5, "warm": 0, "remote": 0},
                "time_to_first_token_p50_seconds": {"none": None, "hot": 0.02, "warm": None, "remote": None},
                "generated_tokens_per_second": 1000 + number,
                "running": 1,
                "waiting": 0,
                "pool_used_share": 0.25,
            }
            for number in range(239)
        ]

        async def history(route: Route) -> None:
            await route.fulfill(json={"interval_seconds": 5, "points": points})

        async with opened(browser, gateway.url, "nothing") as page:
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            await page.route("**/v1/overview/history", history)
            await page.goto(f"{gateway.url}/ui/#/overview")
            await expect(page.locator(".uplot")).to_have_count(5)
            line = page.locator("figcaption").filter(has_text="Generated tokens a second").locator("strong")
            await expect(line).to_have_text("1238")
            async with page.expect_response("**/v1/overview"):
                pass
            assert sum(url.endswith("/history") for url in asked) == 1, "further points are the page's own"
            drawn = await page.locator(".canvas canvas").nth(2).evaluate(DRAWN)
            assert 0 < drawn["first"] < 0.2 * drawn["width"], "the line begins where the window does"


@pytest.mark.slow
async def test_a_model_is_unloaded_and_loaded(browser: Browser, live: Stack) -> None:
    client = await live.client()
    async with opened(browser, live.url, "#/models") as page:
        model = page.get_by_role("article")
        await expect(model.locator(".tier")).to_have_text("loaded")
        await expect(model.get_by_role("img")).to_have_attribute("aria-label", re.compile("weights .*pool of KV"))
        await screenshot(page, "models")
        await model.get_by_role("button", name="Unload…").click()
        await page.get_by_role("dialog").get_by_role("button", name="Unload").click()
        await expect(model.get_by_role("button", name="Load", exact=True)).to_be_visible()
        assert (await client.models.GetModel(model_pb2.GetModelRequest())).model.state != model_pb2.MODEL_STATE_LOADED
        await model.get_by_role("button", name="Load", exact=True).click()
        await expect(model.locator(".tier")).to_have_text("loaded", timeout=60_000)


@pytest.mark.slow
async def test_a_tab_that_nobody_sees_asks_nothing(browser: Browser) -> None:
    with served() as gateway:
        async with opened(browser, gateway.url, "#/overview") as page:
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            async with page.expect_request("**/v1/overview"):
                pass
            see = """hidden => {
                Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
                document.dispatchEvent(new Event('visibilitychange'));
            }"""
            await page.evaluate(see, True)
            await page.wait_for_load_state("networkidle")
            asked.clear()
            await asyncio.sleep(5)
            assert asked == []
            async with page.expect_request("**/v1/overview"):
                await page.evaluate(see, False)


@pytest.mark.slow
async def test_what_bits_do_to_the_quality(browser: Browser) -> None:
    with served() as gateway:
        gateway.worker.models[0].kv_bits_measured.extend(
            model_pb2.KVBitsMeasurement(kv_bits=bits, kl_divergence=kl, bytes_per_token=size, good=kl < 0.1)
            for bits, kl, size in (
                ("8", 0.0001, 200),
                ("4", 0.02, 120),
                ("2", 3.0, 80),
                ("3", math.inf, 100),
                ("16", 0.0, 400),
            )
        )
        async with opened(browser, gateway.url, "#/models") as page:
            plot = page.get_by_role("img", name="KL divergence by bits: 8 bits 0.00010, 4 bits 0.020, 2 bits 3.0")
            await expect(plot.locator("circle")).to_have_count(5)
            await expect(plot.locator("g.bad circle")).to_have_count(2)
            await screenshot(page, "quality")
            place = "circles => circles.map(each => [+each.getAttribute('cx'), +each.getAttribute('cy')])"
            (right, good), (left, worse), *_ = await plot.locator("circle").evaluate_all(place)
            assert left < right and good > worse, "fewer bytes to the left, worse above"
            await expect(page.locator(".kl tbody tr").nth(3)).to_contain_text("infinite, too much")


@pytest.mark.slow
async def test_the_overview_without_what_draws_its_lines(browser: Browser, live: Stack) -> None:
    async with opened(browser, live.url, "nothing") as page:
        await page.route("**/uplot.js", lambda route: route.abort())
        await page.goto(f"{live.url}/ui/#/overview")
        await expect(page.get_by_text("What draws these lines could not be loaded").first).to_be_visible()
        await expect(page.get_by_role("region", name="Processes").locator("tbody tr")).to_have_count(3)
