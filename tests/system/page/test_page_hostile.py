"""The page copes with ten thousand agents, with names and texts of anybody, and with keys that are revoked.

The worker is scripted, for it has to say what a test wants; the gateway and the browser are real.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, expect

from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, types_pb2
from tests.gateway.background import served
from tests.gateway.scripted import delta, finished, hello, started
from tests.gateway.secured import add_key, revoke
from tests.system.page.browser import opened

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "\u202egnp.exe\u202c and \u05d0\u05d1\u05d2 \u0627\u0644",
    "../../v1/models?x=#y",
    "{{7*7}}${7*7}%00",
    "w" * 256,
)
"""Names of agents, and things to say."""


def plain(text: str) -> str:
    """Return a text without the signs of Markdown's emphasis."""
    return text.replace("*", "")


def agent(name: str, **fields: object) -> agent_pb2.Agent:
    key = types_pb2.AgentKey(namespace="default", agent_id=name, model_id="demo")
    return agent_pb2.Agent(key=key, version=types_pb2.AgentVersion(uid="u", version=1), **fields)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_ten_thousand_agents(browser: Browser) -> None:
    with served() as gateway:
        gateway.worker.page = 1000
        gateway.worker.agents = [agent(f"agent-{n:05}", tokens=n, tier=types_pb2.TIER_WARM) for n in range(10_000)]
        async with opened(browser, gateway.url, "#/agents") as page:
            await expect(page.get_by_role("status").filter(has_text="10,000 agents")).to_be_visible()
            await page.get_by_role("button", name="Tokens").click()
            rows = page.locator("tbody tr[data-row]")
            await expect(rows.first).to_contain_text("agent-09999")
            await page.get_by_role("region", name="Agents").focus()
            await page.keyboard.press("ArrowDown")
            await page.keyboard.press("End")
            await expect(page.get_by_role("link", name="agent-00000")).to_be_focused()
            await page.keyboard.press("PageUp")
            await expect(page.get_by_role("link", name="agent-00000")).not_to_be_focused()
            assert await rows.count() < 100
            assert await page.locator("table").get_attribute("aria-rowcount") == "10001"
            await page.keyboard.press("Home")
            await expect(page.get_by_role("link", name="agent-09999")).to_be_focused()
            await page.get_by_role("link", name="agent-09996").focus()
            await page.keyboard.press("ArrowDown")
            await expect(page.get_by_role("link", name="agent-09995")).to_be_focused()
            await page.get_by_label("Search").fill("agent-0512")
            await expect(rows).to_have_count(10)
            await expect(page.get_by_label("Search")).to_be_focused()


@pytest.mark.slow
async def test_names_and_texts_are_text(browser: Browser) -> None:
    with served() as gateway:
        gateway.worker.page = 100
        gateway.worker.agents = [agent(name) for name in HOSTILE]
        text = "".join(f"{each}\n" for each in HOSTILE)

        async def echo(_: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
            yield started()
            yield delta(f"{text}\n```\n{text}```", reasoning=HOSTILE[0])
            yield finished()

        gateway.worker.script = echo
        async with opened(browser, gateway.url, "#/agents") as page:
            await page.get_by_role("button", name="Agent", exact=True).click()
            await page.locator("tbody .who").nth(len(HOSTILE) - 1).wait_for()
            assert sorted(await page.locator("tbody .who").all_inner_texts()) == sorted(HOSTILE)
            for name in HOSTILE:
                await page.goto(f"{gateway.url}/ui/#/talk/demo/{quote(name, safe='')}")
                await expect(page.locator("h2 .name")).to_have_text(name)
                await page.get_by_label("Message", exact=True).fill(HOSTILE[1])
                await page.keyboard.press("Enter")
                said = page.locator("article[data-state=done]")
                assert await said.locator(".said.user .text").text_content() == HOSTILE[1]
                assert await said.locator(".said.assistant details .text").text_content() == HOSTILE[0]
                assert await said.locator(".said.assistant pre").text_content() == text.rstrip("\n")
                prose = plain(await said.locator(".said.assistant .markdown").text_content() or "")
                assert [each for each in HOSTILE if plain(each) not in prose] == []
                assert await page.locator("h2 .name").inner_text() == name
                assert gateway.worker.generated[-1].key.agent_id == name
            assert await page.locator("script").count() == 1 and await page.locator("img").count() == 0
            assert await page.locator("article a").count() == 0


@pytest.mark.slow
async def test_a_key_that_is_revoked(browser: Browser, tmp_path: Path) -> None:
    key, other = add_key(tmp_path), add_key(tmp_path)
    with served(keys=tmp_path / "keys.json") as gateway:
        going_on = threading.Event()

        async def waits(request: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
            yield started()
            yield delta("Half of an ans")
            while not going_on.is_set():
                await asyncio.sleep(0.02)
            async for event in hello(request):
                yield event

        gateway.worker.script = waits
        async with opened(browser, gateway.url, "#/talk/demo/marco") as page:
            question = page.get_by_role("dialog", name="API key")
            for _ in range(3):
                await page.keyboard.press("Escape")
            await question.get_by_label("API key", exact=True).fill("amk_\u201cwrong\u201d")
            await question.get_by_role("button", name="Use it").click()
            await expect(question.get_by_role("alert")).to_have_text(
                "An API key has only ASCII letters, digits and signs."
            )
            await question.get_by_label("API key", exact=True).fill("amk_wrong")
            await question.get_by_role("button", name="Use it").click()
            await expect(question).to_contain_text("The gateway does not take the API key of this tab.")
            await expect(question.get_by_role("alert")).not_to_be_visible()
            await question.get_by_label("API key", exact=True).fill(key)
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("API key in this tab")).to_be_visible()
            await page.get_by_label("Message", exact=True).fill("Hello")
            await page.keyboard.press("Enter")
            await expect(page.locator(".said.assistant")).to_contain_text("Half of an ans")
            await page.get_by_label("Message", exact=True).fill("not sent yet")
            revoke(tmp_path, key)
            await expect(page.get_by_role("alert")).to_contain_text("The connection broke")
            going_on.set()
            gateway.worker.script = hello
            await page.get_by_role("button", name="Try again").click()
            await expect(question).to_contain_text("What you typed into the page is still there")
            await question.get_by_label("API key", exact=True).fill(other)
            await page.keyboard.press("Enter")
            await expect(page.locator("article[data-state=done] .said.assistant")).to_contain_text("Hello")
            assert await page.get_by_label("Message", exact=True).input_value() == "not sent yet"
            kept = await page.evaluate("[Object.keys(localStorage), document.cookie, Object.keys(sessionStorage)]")
            assert kept == [["agentmem.theme"], "", ["agentmem.key"]]
            await page.get_by_role("button", name="Forget it").click()
            assert await page.evaluate("sessionStorage.length") == 0
        first, second = gateway.worker.generated
        assert first.request_id == second.request_id


@pytest.mark.slow
async def test_a_name_that_is_a_step_in_a_path_is_refused(browser: Browser) -> None:
    with served() as gateway:
        gateway.worker.agents = [agent(".."), agent(".")]
        for place in ("#/agents/demo/..", "#/agents/demo/.", "#/talk/demo/.."):
            async with opened(browser, gateway.url, place) as page:
                await expect(page.get_by_role("alert")).to_contain_text(
                    "A browser cannot ask for an agent of this name."
                )
        async with opened(browser, gateway.url, "#/talk/demo/..") as page:
            await page.get_by_label("Message", exact=True).fill("Hello")
            await page.keyboard.press("Enter")
            await expect(page.locator("article[data-state=failed]")).to_contain_text("A browser cannot ask")
        lists = {model_pb2.ListModelsRequest, agent_pb2.ListAgentsRequest}
        assert [each for each in gateway.worker.requests if type(each) not in lists] == []
