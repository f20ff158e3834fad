"""The page chats with a real model."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect

from tests.system.page.browser import opened, screenshot
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def say(page: Page, text: str, pane: str = "talker") -> None:
    chat = page.get_by_role("region", name=f"Chat with {pane}", exact=True)
    turns = await chat.locator("article[data-state=done]").count()
    await chat.get_by_label("Say", exact=True).fill(text)
    await chat.get_by_role("button", name="Send").click()
    await expect(chat.locator("article[data-state=done]")).to_have_count(turns + 1)


@pytest.mark.slow
async def test_answers_say_what_the_memory_gave(browser: Browser, live: Stack) -> None:
    client = await live.client()
    async with opened(browser, live.url, "#/talk") as page:
        await page.get_by_label("Agent", exact=True).fill("talker")
        await page.get_by_role("button", name="Talk").click()
        await expect(page.get_by_text("Nothing was said yet.")).to_be_visible()
        await say(page, "The colour of the boat is green.")
        await say(page, "What is the colour of the boat?")
        last = page.locator("article").last
        await expect(last.locator(".said.assistant")).to_contain_text("green")
        await expect(last.locator(".match")).to_have_text("extend")
        await expect(last.locator(".tier")).to_have_text("hot")
        await expect(last.locator(".report")).to_contain_text("first token")
        await expect(last.locator(".report")).to_contain_text("prompt tokens reused")
        await page.reload()
        await expect(page.locator("article")).to_have_count(2)
        await expect(page.locator("article").last.locator(".said.assistant")).to_contain_text("green")
    assert (await client.agent("talker")).turns == 2


@pytest.mark.slow
async def test_stop_leaves_the_memory_as_it_was(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("stopped", "The key is in the cellar.", max_tokens=20)
    before = (await client.agent("stopped")).version
    async with opened(browser, live.url, "#/talk/demo/stopped") as page:
        await page.get_by_text("Settings").press("Enter")
        await page.get_by_label("Temperature").fill("2")
        await page.get_by_label("Say", exact=True).fill("Where is the key? " * 150)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(
            page.get_by_text("Unless it had just ended, the agent remembers nothing of this turn.")
        ).to_be_visible()
        await page.get_by_role("button", name="Take it away").click()
        await expect(page.locator("article")).to_have_count(1)
    assert (await client.agent("stopped")).version == before


@pytest.mark.slow
async def test_a_fork_beside_goes_its_own_way(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("danny", "The number of the locker is 417.", max_tokens=30)
    async with opened(browser, live.url, "#/talk/demo/danny") as page:
        await page.get_by_role("button", name="Fork beside").click()
        await page.get_by_label("Name of the fork").fill("danny 2/2")
        await page.get_by_role("dialog").get_by_role("button", name="Fork").click()
        beside = page.get_by_role("region", name="Chat with danny 2/2")
        await expect(beside.locator("article")).to_have_count(1)
        await say(page, "What is the number of the locker?", "danny 2/2")
        await say(page, "The colour of the boat is green.", "danny")
        await expect(beside.locator(".said.assistant").last).to_contain_text("417")
        await screenshot(page, "talk")
        await beside.get_by_role("button", name="Close").click()
        await expect(page.get_by_role("region", name="Chat with danny", exact=True)).to_be_visible()
    assert ((await client.agent("danny")).turns, (await client.agent("danny 2/2")).turns) == (2, 2)


@pytest.mark.slow
async def test_without_a_mouse(browser: Browser, live: Stack) -> None:
    async with opened(browser, live.url, "#/talk") as page:
        await expect(page.get_by_label("Model")).to_have_value("demo")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="To the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.type("by keys")
        await page.keyboard.press("Enter")
        await page.get_by_label("Say", exact=True).focus()
        await page.keyboard.type("The key is in the cellar.")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("Where is the key?")
        await page.keyboard.press("Enter")
        await expect(page.locator("article[data-state=done] .said.user")).to_contain_text("cellar.\nWhere")
