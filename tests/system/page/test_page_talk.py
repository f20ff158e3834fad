"""The page chats with a real model."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Page, expect

from agentmem.v1 import agent_pb2
from tests.system.page.browser import CACHE_HIT, opened, screenshot
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def say(page: Page, text: str, pane: str = "talker") -> None:
    chat = page.get_by_role("region", name=f"Chat with {pane}", exact=True)
    turns = await chat.locator("article[data-state=done]").count()
    await chat.get_by_label("Message", exact=True).fill(text)
    await chat.get_by_role("button", name="Send").click()
    await expect(chat.locator("article[data-state=done]")).to_have_count(turns + 1)


@pytest.mark.slow
async def test_a_chat_begins_with_words(browser: Browser, live: Stack) -> None:
    client = await live.client()
    name = "the-colour-of-the-boat-is"
    async with opened(browser, live.url) as page:
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        await expect(page.get_by_role("combobox", name="Model")).to_have_value("demo")
        await screenshot(page, "new-chat")
        await page.keyboard.type("The colour of the boat is green.")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name=name)).to_be_visible()
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        first = page.locator("article[data-state=done]")
        await expect(first.locator(".said.assistant")).to_contain_text("green")
        await expect(first.locator(".given")).to_have_count(0)  # a new agent has no memory
        await say(page, "What is the colour of the boat?", name)
        last = page.locator("article").last
        await expect(last.locator(".said.assistant")).to_contain_text("The colour of the boat is green.")
        await expect(last.locator(".match")).to_have_text("extend")
        await expect(last.locator(".report .tier")).to_have_text("hot")
        await expect(last.locator(".report")).to_contain_text("TTFT ")
        await expect(last.locator(".report")).to_contain_text(CACHE_HIT)
        await expect(last.locator(".given")).to_have_text(
            re.compile(r"^28 of 45 tokens from memory, [\d.]+ m?s saved$")
        )
        await page.reload()
        await expect(page.locator("article")).to_have_count(2)
        await expect(page.locator("article").last.locator(".said.assistant")).to_contain_text("green")
        await page.get_by_role("link", name="New chat").click()
        await expect(page.get_by_role("link", name=name)).to_be_visible()
        await page.get_by_label("Message", exact=True).fill("The colour of the boat is red.")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name=f"{name}-2")).to_be_visible()
        await expect(page.locator("article[data-state=done]")).to_have_count(1)
    assert ((await client.agent(name)).turns, (await client.agent(f"{name}-2")).turns) == (2, 1)


@pytest.mark.slow
async def test_a_system_prompt_begins_the_memory(browser: Browser, live: Stack) -> None:
    client = await live.client()
    async with opened(browser, live.url) as page:
        await page.get_by_text("System prompt", exact=True).press("Enter")
        await page.get_by_label("System prompt", exact=True).fill("You are a sailor.")
        await page.get_by_label("Message", exact=True).fill("Don't forget: the key is in the cellar.")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("article[data-state=done]")).to_have_count(1)
        await expect(page.locator(".said.system")).to_contain_text("You are a sailor.")
        await expect(page.get_by_text("System prompt", exact=True)).to_have_count(0)
    request = agent_pb2.ListTurnsRequest(key=client.key("dont-forget-the-key-is-in"), include_text=True)
    [turn] = (await client.agents.ListTurns(request)).turns
    assert [message.role for message in turn.messages] == ["system", "user", "assistant"]


@pytest.mark.slow
async def test_another_question_is_a_branch(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("root", "The key is in the cellar. " * 40, max_tokens=20)  # more than a block of tokens
    await client.say("root", "The colour of the boat is green.", max_tokens=20)
    async with opened(browser, live.url, "#/talk/demo/root") as page:
        turns = page.locator("article")
        await expect(turns).to_have_count(2)
        await expect(page.get_by_role("group", name="Branches")).to_have_count(0)
        await turns.last.get_by_role("button", name="Edit").click()
        await page.get_by_label("Your message").fill("Where is the key?")
        await page.get_by_role("button", name="Ask in a new branch").click()
        await expect(page.get_by_role("heading", name="root~2")).to_be_visible()
        await expect(page.locator("article[data-state=done]")).to_contain_text("The key is in the cellar.")
        await expect(turns.last.locator(".given")).to_contain_text("256 of ")
        branches = page.get_by_role("group", name="Branches")
        await expect(branches).to_have_count(1)  # the first turn is common to both
        await expect(branches).to_contain_text("2/2")
        await screenshot(page, "branch")
        await page.get_by_role("link", name="The branch before").click()
        await expect(page.get_by_role("heading", name="root", exact=True)).to_be_visible()
        await expect(turns.last.get_by_role("group", name="Branches")).to_contain_text("1/2")
        await turns.first.get_by_role("button", name="Edit").click()  # before it there is no memory
        await page.get_by_label("Your message").fill("The key is in the attic.")
        await page.get_by_role("button", name="Ask in a new branch").click()
        await expect(page.get_by_role("heading", name="root~3")).to_be_visible()
        await expect(turns).to_have_count(1)
        await expect(page.locator("article[data-state=done] .said.assistant")).to_contain_text("attic")
        await expect(turns.get_by_role("group", name="Branches")).to_contain_text("2/2")
        await turns.get_by_role("button", name="Regenerate").click()
        await expect(page.get_by_role("heading", name="root~4")).to_be_visible()
        await expect(page.locator("article[data-state=done]")).to_have_count(1)
        await expect(turns.get_by_role("group", name="Branches")).to_contain_text("3/3")
        await page.get_by_role("link", name="The branch before").click()
        await expect(page.get_by_role("heading", name="root~3")).to_be_visible()
    assert [(await client.agent(name)).turns for name in ("root", "root~2", "root~3", "root~4")] == [2, 2, 1, 1]


@pytest.mark.slow
async def test_settings_show_the_defaults_of_the_model(browser: Browser, live: Stack) -> None:
    async with opened(browser, live.url, "#/talk") as page:
        await page.get_by_text("Settings").press("Enter")
        await expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "0")
        await expect(page.get_by_label("Top p")).to_have_attribute("placeholder", "1")
        await page.get_by_label("Max tokens").fill("3")
        await page.get_by_label("Message", exact=True).fill("The number of the locker is 417.")
        await page.get_by_role("button", name="Send").click()
        report = page.locator("article[data-state=done] .report")
        await expect(report).to_contain_text("3 generated")
        await expect(report).to_contain_text("ended: length")
        await expect(page.get_by_label("Max tokens")).to_have_value("3")  # they hold for the tab


@pytest.mark.slow
async def test_stop_leaves_the_memory_as_it_was(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("stopped", "The key is in the cellar.", max_tokens=20)
    before = (await client.agent("stopped")).version
    async with opened(browser, live.url, "#/talk/demo/stopped") as page:
        await page.get_by_text("Settings").press("Enter")
        await page.get_by_label("Temperature").fill("2")
        await page.get_by_label("Message", exact=True).fill("Where is the key? " * 150)
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
    async with opened(browser, live.url, "#/agents") as page:
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="To the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.goto(f"{live.url}/ui/#/talk/demo/by keys")
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        await page.keyboard.type("The key is in the cellar.")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("Where is the key?")
        await page.keyboard.press("Enter")
        await expect(page.locator("article[data-state=done] .said.user")).to_contain_text("cellar.\nWhere")
        await page.keyboard.type("What is the colour of the boat?")  # the field still has the focus
        await page.keyboard.press("Enter")
        await expect(page.locator("article[data-state=done]")).to_have_count(2)
