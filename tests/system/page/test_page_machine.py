"""What the page says of the machine: the processes and what they count, and the models; with a real one."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Browser, expect

from agentmem.v1 import model_pb2
from tests.gateway.background import served
from tests.system.page.browser import documenting, opened, screenshot
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_overview_goes_on_while_it_is_open(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("counted", "The colour of the boat is green.", max_tokens=20)
    async with opened(browser, live.url, "#/overview") as page:
        processes = page.get_by_role("region", name="Processes").locator("tbody tr")
        await expect(processes).to_have_count(3)
        for row in await processes.all():
            await expect(row).to_contain_text("up")
        await expect(page.locator(".uplot")).to_have_count(4)
        shown = page.locator("figcaption").filter(has_text="Prompt tokens from memory").locator("strong")
        shares, clock = set(), asyncio.get_running_loop().time
        enough = clock() + (16 if documenting() else 0)  # a picture has some points
        async with asyncio.timeout(30):  # until a turn has fallen between two readings
            while clock() < enough or not any(re.fullmatch(r"[1-9]\d*%", each) for each in shares):
                await client.say("counted", "What is the colour of the boat?", max_tokens=20)
                shares.add(await shown.inner_text())
        hot = page.get_by_role("region", name="By tier").locator("tbody tr").first
        await expect(hot.locator("td").nth(1)).not_to_have_text("0")
        await expect(hot.locator("td").nth(2)).to_have_text(re.compile("ms|s"))
        await screenshot(page, "overview")


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


async def test_a_load_that_fails_says_why(browser: Browser) -> None:
    with served() as gateway:
        gateway.worker.models[0].state = model_pb2.MODEL_STATE_REGISTERED
        gateway.worker.stages = [("read", 0.5)]
        gateway.worker.load_error = ValueError("secret")
        async with opened(browser, gateway.url, "#/models") as page:
            await page.get_by_role("button", name="Load", exact=True).first.click()
            await expect(page.get_by_role("alert")).to_contain_text("incident")
            await expect(page.get_by_role("button", name="Try again")).to_be_visible()
