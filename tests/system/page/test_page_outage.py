"""A gateway that is killed under an open page and started again: the page says so, and loses nothing."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.system.page.browser import opened
from tests.system.shared import DEMO, SharedStacks
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(stacks: SharedStacks) -> AsyncIterator[Stack]:
    """The services of `live`, as processes."""
    async with stacks.using(DEMO, "store", "worker", "gateway", killable=True) as stack:
        yield stack


@pytest.mark.slow
async def test_a_gateway_that_is_killed(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("survivor", "The key is in the cellar.", max_tokens=20)
    async with (
        opened(browser, live.url, "#/overview") as overview,
        opened(browser, live.url, "#/talk/demo/survivor") as page,
    ):
        await expect(overview.get_by_role("region", name="Processes")).to_be_visible()
        await page.get_by_text("Settings").press("Enter")
        await page.get_by_label("Max tokens").fill("600")
        await page.get_by_label("Temperature").fill("2")
        await page.get_by_label("Message", exact=True).fill("Where is the key? " * 60)
        worker = live.processes["worker"]
        worker.send_signal(signal.SIGSTOP)  # The turn cannot end before the gateway does.
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await page.get_by_label("Message", exact=True).fill("not sent yet")
        live.kill("gateway")
        worker.send_signal(signal.SIGCONT)
        broken = page.get_by_role("alert")
        await expect(broken).to_contain_text("The connection broke before the turn had ended")
        await expect(overview.get_by_role("alert")).to_contain_text("The gateway does not answer")
        await expect(overview.get_by_text("This is of ")).to_be_visible()
        await expect(overview.get_by_role("region", name="Processes")).to_be_visible()
        await page.get_by_role("button", name="Try again").click()
        await expect(broken).to_contain_text("The connection broke")
        assert await page.get_by_label("Message", exact=True).input_value() == "not sent yet"
        await live.up("gateway")
        await expect(overview.get_by_role("alert")).to_have_count(0)
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator("article[data-state=done]")).to_have_count(1, timeout=60_000)
        assert await page.get_by_label("Message", exact=True).input_value() == "not sent yet"
        await page.get_by_label("Max tokens").fill("20")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("article[data-state=done]")).to_have_count(2)
    assert (await client.agent("survivor")).turns == 3
