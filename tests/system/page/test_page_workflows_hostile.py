"""Runs in the page whose agents say anything: what they said is text.

The worker is scripted, for it has to say what a test wants; store, gateway and browser are real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from agentmem import errors
from agentmem.v1 import inference_pb2
from tests.gateway.background import served
from tests.gateway.scripted import delta, finished, hello, started
from tests.system.page.browser import opened
from tests.system.page.test_page_hostile import HOSTILE
from tests.system.page.test_page_workflows import run, state

pytestmark = pytest.mark.asyncio(loop_scope="session")

TWO = """\
workflow: two
agents: {marco: {}, lena: {}}
phases:
  - name: talk
    agents: [marco, lena]
    channel: private
    prompts: Say something.
    outcome: {kind: text, agent: marco}
"""


def saying(text: str, piece: int = 1 << 16) -> object:
    async def script(_: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield started()
        for first in range(0, len(text), piece):
            yield delta(text[first : first + piece])
        yield finished()

    return script


@pytest.mark.slow
async def test_what_agents_say_is_text(browser: Browser, tmp_path: Path) -> None:
    text = "".join(f"{each}\n" for each in (*HOSTILE, "</script><!-- ]]>", "\u2028\u2029\\u003c"))
    with served() as gateway:
        gateway.worker.script = saying(text)  # type: ignore[assignment]
        async with opened(browser, gateway.url, "#/workflows/new") as page:
            await run(page, TWO)
            await expect(state(page)).to_have_text("succeeded")
            await shows(page, text)
            assert await page.locator("script").count() == 1 and await page.locator("img").count() == 0


async def shows(page: Page, text: str) -> None:
    """Both agents have said it, to each other and privately."""
    for name, other in (("marco", "lena"), ("lena", "marco")):
        said = page.locator("article.turn").filter(has_text=f"{name} → {other}")
        await expect(said.locator(".channel")).to_have_text("private")
        assert await said.locator(".text").text_content() == text
    assert await page.locator(".outcome td").text_content() == text.strip()


@pytest.mark.slow
async def test_a_run_that_fails_says_why_and_goes_on(browser: Browser, tmp_path: Path) -> None:
    with served() as gateway:

        async def fails(_: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
            raise errors.FailedPrecondition("<b>no room</b>")
            yield started()

        gateway.worker.script = fails
        async with opened(browser, gateway.url, "#/workflows/new") as page:
            await run(page, TWO)
            await expect(state(page)).to_have_text("failed")
            await expect(page.locator(".problem")).to_contain_text("<b>no room")
            gateway.worker.script = hello
            await page.get_by_role("link", name="Workflows", exact=True).last.click()
            await page.get_by_role("button", name="Resume").click()
            await expect(state(page)).to_have_text("succeeded")
            await expect(page.locator("article.turn")).to_have_count(2)


@pytest.mark.slow
async def test_more_runs_than_are_shown_at_first(browser: Browser) -> None:
    with served() as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
            for number in range(27):
                definition = TWO.replace("workflow: two", f"workflow: run-{number}")
                (await http.post("/v1/workflows", json={"definition_yaml": definition})).raise_for_status()
        async with opened(browser, gateway.url, "#/workflows") as page:
            rows = page.locator(".runs tbody tr")
            await expect(rows).to_have_count(25)
            await page.get_by_role("button", name="Show more").click()
            await expect(rows).to_have_count(27)
            await expect(rows.last).to_contain_text("run-0")
            async with page.expect_response("**/v1/workflows?*"):
                await page.get_by_role("button", name="Refresh").click()
            await expect(page.get_by_text("27 runs", exact=True)).to_be_visible()
            await expect(page.get_by_role("button", name="Show more")).to_have_count(0)
