"""Agents in the page: the table, an agent's memory, its branches, and what is done to it; with a real model."""

from __future__ import annotations

import grpc
import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from agentmem.v1 import types_pb2
from tests.system.client import Client, refused
from tests.system.page.browser import CACHE_HIT, opened, screenshot
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def known(live: Stack, name: str) -> Client:
    client = await live.client()
    await client.say(name, "The colour of the boat is green.", max_tokens=20)
    await client.say(name, "What is the colour of the boat?", max_tokens=20)
    return client


async def act(page: Page, what: str, button: str, field: tuple[str, str] | None = None) -> None:
    await page.get_by_text("Actions", exact=True).click()
    await page.get_by_role("button", name=f"{what}…", exact=True).click()
    dialog = page.get_by_role("dialog")
    if field is not None:
        await dialog.get_by_label(field[0]).fill(field[1])
    await dialog.get_by_role("button", name=button, exact=True).click()
    await expect(dialog).not_to_be_visible()


@pytest.mark.slow
async def test_the_table_leads_to_a_memory(browser: Browser, live: Stack) -> None:
    for name in ("crew danny", "crew marco", "crew polo"):
        await known(live, name)
    async with opened(browser, live.url, "#/agents") as page:
        await expect(page.get_by_role("status").filter(has_text="agents")).to_be_visible()
        await screenshot(page, "agents")
        names = page.locator("tbody .who")
        await page.get_by_label("Search").fill("CREW")
        await page.get_by_role("button", name="Agent", exact=True).click()
        await expect(names).to_have_text(["crew danny", "crew marco", "crew polo"])
        await page.get_by_role("button", name="Agent", exact=True).click()
        await expect(names).to_have_text(["crew polo", "crew marco", "crew danny"])
        await page.get_by_label("Search").fill("MARCO")
        await expect(names).to_have_text(["crew marco"])
        await page.get_by_role("region", name="Agents").focus()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="crew marco")).to_be_visible()
        await expect(page.locator("ol.turns > li")).to_have_count(2)
        await expect(page.locator("ol.turns .said.user").last).to_contain_text("What is the colour of the boat?")
        await expect(page.locator("ol.turns .report .match").last).to_have_text("extend")
        await expect(page.locator("ol.turns .report").last).to_contain_text(CACHE_HIT)
        await page.get_by_label("As the model sees it").check()
        await expect(page.locator(".coloured").first).to_contain_text("The colour of the boat is green.")
        await expect(page.locator(".stretch").first).to_have_class("stretch hot")
        await expect(page.get_by_role("img", name="KV by block")).to_be_visible()
        await screenshot(page, "memory")


@pytest.mark.slow
async def test_what_can_be_done_to_an_agent(browser: Browser, live: Stack) -> None:
    client = await known(live, "ada")
    tokens = (await client.agent("ada")).tokens
    async with opened(browser, live.url, "#/agents/demo/ada") as page:
        await act(page, "Snapshot", "Keep it", ("Name", "before"))
        await act(page, "Pin", "Pin")
        await expect(page.get_by_text("pinned: never evicted")).to_be_visible()
        await act(page, "Trim", "Trim", ("Tokens to keep", "5"))
        await expect(page.get_by_text("5 tokens in")).to_be_visible()
        assert (await client.agent("ada")).tokens == 5
        await page.get_by_role("link", name="Branches").click()
        kept = page.get_by_role("listitem").filter(has_text="before")
        await kept.get_by_role("button", name="Fork here").click()
        await page.get_by_role("dialog").get_by_label("Name of the fork").fill("ada then")
        await page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
        await expect(page.get_by_role("dialog")).not_to_be_visible()
        await page.goto(f"{live.url}/ui/#/agents/demo/ada/branches")
        await kept.get_by_role("button", name="Restore").click()
        await page.get_by_role("dialog").get_by_role("button", name="Restore").click()
        await expect(page.get_by_text(f"{tokens} tokens in")).to_be_visible()
        await act(page, "Evict everywhere", "Evict")
        await expect(page.locator(".facts .tier")).to_have_text("none")
        async with page.expect_download() as saved:
            await act(page, "Export", "Export")
        assert (await saved.value).suggested_filename == "ada.agent"
        await act(page, "Fork", "Fork", ("Name of the fork", "ada's fork"))
        await expect(page.get_by_role("heading", name="ada's fork")).to_be_visible()
    assert (await client.agent("ada then")).tokens == tokens
    assert (await client.agent("ada")).pinned and (await client.agent("ada's fork")).tokens == tokens


@pytest.mark.slow
async def test_when_it_expires_and_what_a_full_context_does(browser: Browser, live: Stack) -> None:
    client = await known(live, "kim")
    async with opened(browser, live.url, "#/agents/demo/kim") as page:
        facts = page.locator(".facts")
        await act(page, "Expires", "Set", ("KV expires after", "36 h"))
        await expect(facts).to_contain_text("KV after 36 h idle")
        await page.get_by_text("Actions", exact=True).click()
        await page.get_by_role("button", name="Expires…").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_label("KV expires after")).to_have_value("36 h")
        await dialog.get_by_label("Deleted after").fill("soon")
        await dialog.get_by_role("button", name="Set").click()
        await expect(dialog.get_by_role("alert")).to_contain_text('"soon" is no time')
        await dialog.get_by_label("Deleted after").fill("2.5d")
        await dialog.get_by_label("KV expires after").fill("")
        await dialog.get_by_role("button", name="Set").click()
        await expect(facts).to_contain_text("deleted after 3 d idle")
        described = await client.agent("kim")
        assert (described.HasField("ttl"), described.delete_after.seconds) == (False, 216_000)
        await act(page, "Expires", "Set", ("Deleted after", ""))
        await expect(facts).to_contain_text("never")
        await page.get_by_text("Actions", exact=True).click()
        await page.get_by_role("button", name="Full context…").click()
        await dialog.get_by_label("Then").select_option("refuse")
        await dialog.get_by_role("button", name="Set").click()
        await expect(facts).to_contain_text("refuse")
    described = await client.agent("kim")
    assert not described.HasField("delete_after")
    assert described.context_policy == types_pb2.CONTEXT_POLICY_REFUSE


@pytest.mark.slow
async def test_forks_of_forks_are_a_tree(browser: Browser, live: Stack) -> None:
    client = await known(live, "root")
    await client.snapshot("root", "before the move")
    for source, fork in (("root", "child"), ("child", "grandchild"), ("root", "sibling")):
        await client.fork(source, fork)
    async with opened(browser, live.url, "#/agents/demo/root/branches") as page:
        await expect(page.locator(".forks").first.locator("> li")).to_have_count(2)
        child = page.locator(".forks > li").filter(has=page.get_by_role("link", name="child", exact=True)).first
        await expect(child.locator(".forks").get_by_role("link")).to_have_text(["grandchild"])
        await screenshot(page, "branches")
        await child.get_by_role("link", name="grandchild").click()
        await expect(page.get_by_role("heading", name="grandchild")).to_be_visible()
        await expect(page.locator("li").filter(has_text="forked from").get_by_role("link")).to_have_text(
            ["root", "child"]
        )


@pytest.mark.slow
async def test_an_agent_without_a_name_shows_its_first_words(browser: Browser, live: Stack) -> None:
    said = {"role": "user", "content": "The number of the locker is 417."}
    asked = {"role": "user", "content": "Where is the key?"}
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        for message, headers in ((said, {}), (asked, {"x-agent-name": "deck"})):
            body = {"model": "demo", "messages": [message], "max_tokens": 20}
            answer = await http.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.headers["x-agent-id"].startswith("conv-")
    async with opened(browser, live.url, "#/agents") as page:
        await expect(page.get_by_role("link", name="deck: Where is the key?")).to_be_visible()
        await page.get_by_role("link", name=said["content"]).click()
        await expect(page.get_by_role("heading", name=said["content"])).to_be_visible()
        await page.get_by_role("link", name="Talk", exact=True).last.click()
        await expect(page.get_by_role("heading", name=said["content"])).to_be_visible()
        await page.get_by_role("link", name="New chat").click()
        await expect(page.get_by_role("link", name=said["content"])).to_be_visible()


@pytest.mark.slow
async def test_nothing_is_deleted_by_accident(browser: Browser, live: Stack) -> None:
    client = await known(live, "eve")
    async with opened(browser, live.url, "#/agents/demo/eve") as page:
        await page.get_by_text("Actions", exact=True).click()
        await page.get_by_role("button", name="Delete…").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_role("button", name="Delete for good")).to_be_disabled()
        await dialog.get_by_role("textbox").fill("Eve")
        await expect(dialog.get_by_role("button", name="Delete for good")).to_be_disabled()
        await page.keyboard.press("Escape")
        await expect(dialog).not_to_be_visible()
        assert (await client.agent("eve")).turns == 2
        await act(page, "Delete", "Delete for good", ("to confirm", "eve"))
        await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    await refused(client.agent("eve"), grpc.StatusCode.NOT_FOUND)


@pytest.mark.slow
async def test_a_probe_says_how_far_and_why_no_further(browser: Browser, live: Stack) -> None:
    client = await known(live, "noa")
    before = (await client.agent("noa")).version
    async with opened(browser, live.url, "#/agents/demo/noa/probe") as page:
        await page.get_by_label("It is").select_option("prompt")
        await page.get_by_role("textbox", name="Prompt").fill("Nothing of that.")
        await page.get_by_role("button", name="Probe").click()
        await expect(page.locator(".found")).to_contain_text("No more, because")
        await page.get_by_label("It is").select_option("append")
        await page.get_by_role("button", name="Probe").click()
        await expect(page.locator(".found .match")).to_have_text("extend")
        await screenshot(page, "probe")
        await page.get_by_label("It is").select_option("messages")
        await page.get_by_role("button", name="Probe").click()
        await expect(page.get_by_role("alert")).to_contain_text("This is no JSON")
    assert (await client.agent("noa")).version == before
