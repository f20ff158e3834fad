"""Branches of a chat in the page: what is typed stays until it is asked, and nothing is asked that nobody waits for."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, Route, expect

from agentmem.v1 import agent_pb2
from tests.system.page.browser import opened
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

FORK, GENERATE = "**/fork?*", "**/generate?*"


@pytest.mark.slow
async def test_an_edited_question_stays_until_it_is_asked(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("editor", "The key is in the cellar.", max_tokens=20)
    async with opened(browser, live.url, "#/talk/demo/editor") as page:
        await page.get_by_role("button", name="Edit").click()
        field = page.get_by_label("Your message")
        await expect(field).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Edit")).to_be_focused()
        await page.keyboard.press("Enter")
        await field.fill("The key is in the attic.")
        await page.route(FORK, lambda route: route.abort())
        await page.get_by_role("button", name="Ask in a new branch").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await expect(field).to_have_value("The key is in the attic.")
        await page.unroute(FORK)
        await page.get_by_role("button", name="Ask in a new branch").click()
        await expect(page.get_by_role("heading", name="editor~2")).to_be_visible()
        await expect(page.locator("article[data-state=done] .said.assistant")).to_contain_text("attic")
        await page.get_by_role("button", name="Regenerate").dblclick()
        await expect(page.get_by_role("heading", name="editor~3")).to_be_visible()
        await expect(page.locator("article[data-state=done]")).to_have_count(1)
    listed = await client.agents.ListAgents(
        agent_pb2.ListAgentsRequest(namespace=client.key("editor").namespace, page_size=1000)
    )
    names = sorted(agent.key.agent_id for agent in listed.agents)
    assert [name for name in names if name.startswith("editor")] == ["editor", "editor~2", "editor~3"]


@pytest.mark.slow
async def test_branches_leave_the_chat_beside_alone(browser: Browser, live: Stack) -> None:
    client = await live.client()
    for name in ("left", "right"):
        await client.say(name, "The key is in the cellar.", max_tokens=20)
    async with opened(browser, live.url, "#/talk/demo/left?beside=right") as page:
        left, right = (page.get_by_role("region", name=f"Chat with {name}", exact=True) for name in ("left", "right"))
        fork = page.get_by_role("region", name="Chat with left~2", exact=True)
        await left.get_by_role("button", name="Regenerate").click()
        await expect(fork.locator("article[data-state=done]")).to_have_count(1)
        released = asyncio.Event()

        async def hold(route: Route) -> None:
            await released.wait()
            await route.continue_()

        await page.route(GENERATE, hold)
        for pane in (right, fork):
            await pane.get_by_label("Message", exact=True).fill("Where is the key?")
            await pane.get_by_role("button", name="Send").click()
            await expect(pane.get_by_role("button", name="Stop")).to_be_visible()
        await expect(fork.get_by_role("group", name="Branches")).to_contain_text("2/2")
        await expect(page.get_by_role("link", name="The branch before")).to_have_count(0)
        await fork.get_by_role("button", name="Stop").click()
        await fork.get_by_role("link", name="The branch before").click()
        await expect(left).to_be_visible()
        await expect(right.get_by_role("button", name="Stop")).to_be_visible()
        released.set()
        await expect(right.locator("article[data-state=done] .said.assistant")).to_contain_text("cellar")


@pytest.mark.slow
async def test_a_question_whose_reader_left_is_not_asked_later(browser: Browser, live: Stack) -> None:
    client = await live.client()
    await client.say("leaver", "The key is in the cellar.", max_tokens=20)
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        await released.wait()
        await route.continue_()

    async with opened(browser, live.url, "#/talk/demo/leaver") as page:
        await page.route(FORK, hold)
        async with page.expect_response(FORK):
            async with page.expect_request(FORK):
                await page.get_by_role("button", name="Regenerate").click()
            await page.get_by_role("link", name="Agents").click()
            await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
            released.set()
        await page.evaluate("location.hash = '#/talk/demo/leaver~2'")
        await expect(page.get_by_text("Nothing was said yet.")).to_be_visible()
        await expect(page.locator("article")).to_have_count(0)
