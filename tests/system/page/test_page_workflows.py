"""Workflows in the page, on real processes: files, runs live as lanes, and runs that break off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.system.page.browser import CACHE_HIT, opened, screenshot
from tests.system.shared import DEMO, SharedStacks
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

YARD = """\
workflow: yard
variables: {secret: The key is in the cellar.}
defaults: {max_tokens: 24, sampling: {temperature: 0}}
agents:
  marco: {system: You are marco.}
  lena: {system: You are lena.}
  omar: {system: You are omar.}
phases:
  - name: whispers
    agents: [marco, lena, omar]
    channel: whisper
    to: {marco: [lena], lena: [marco], omar: [marco]}
    prompts: {marco: "${secret}", "*": Where is the key?}
  - name: questions
    agents: [lena, omar]
    topology: all_at_once
    channel: public
    rounds: 2
    prompts: Where is the key?
    outcome: {kind: choice, options: [cellar, attic]}
"""
LONG = """\
workflow: long
defaults: {max_tokens: 16}
agents:
  marco: {system: You are marco.}
  lena: {system: You are lena.}
phases: [{name: talk, agents: [marco, lena], rounds: 60, prompts: What is the colour of the boat?}]
"""


async def run(page: Page, text: str, variables: str = "") -> None:
    await page.get_by_label("Workflow, in YAML").fill(text)
    if variables:
        await page.get_by_text("Variables").click()
        await page.get_by_label("Values, a line for each").fill(variables)
    await page.get_by_role("button", name="Run", exact=True).click()
    await expect(page.get_by_role("region", name="What was said")).to_be_visible()


def state(page: Page) -> Locator:
    return page.locator(".head .run-state")


async def lanes(page: Page) -> list[Any]:
    """Return each cell of the lanes: its lane, its text, and the width of each part of its bar."""
    shown: list[Any] = await page.evaluate(
        """() => {
          const source = (part) => part.className + part.style.flexGrow;
          const cells = document.querySelectorAll('.lanes .cell, .lanes h2, .lanes h3, .outcome tr');
          const sources = (e) => [...e.querySelectorAll(".source")].map(source);
          return [...cells].map((e) => [e.style.gridColumn, e.textContent, sources(e)]);
        }"""
    )
    return shown


@pytest.mark.slow
async def test_a_file_is_checked_and_run(browser: Browser, live: Stack, tmp_path: Path) -> None:
    async with opened(browser, live.url, "#/workflows/new") as page:
        wrong = YARD.replace("to: {marco: [lena]", "to: {marco: [elena]")
        await page.get_by_label("File", exact=True).set_input_files(
            {"name": "yard.yaml", "mimeType": "text/yaml", "buffer": wrong.encode()}
        )
        await expect(page.get_by_label("Workflow, in YAML")).to_have_value(wrong)
        await page.get_by_role("button", name="Check").click()
        mistakes = page.locator(".mistakes li")
        await expect(mistakes.first).to_contain_text("elena")
        await expect(mistakes.first).to_contain_text("phases[0].to")
        line = 1 + wrong[: wrong.index("elena")].count("\n")
        await page.get_by_role("button", name=f"Line {line}, column").first.click()
        caret = await page.get_by_label("Workflow, in YAML").evaluate("e => e.value.slice(0, e.selectionStart)")
        assert caret.count("\n") == line - 1
        await screenshot(page, "workflow-file")
        await page.get_by_role("button", name="Run", exact=True).click()  # begins nothing
        await expect(mistakes.first).to_contain_text("elena")

        await page.get_by_label("Workflow, in YAML").fill(YARD)
        await page.get_by_role("button", name="Check").click()
        await expect(page.get_by_text("can be run: 3 agents in 2 phases.")).to_be_visible()
        await run(page, YARD, "secret=The number of the locker is 417.")
        await expect(state(page)).to_have_text("succeeded")
        heads = page.locator(".heads .cell strong")
        await expect(heads).to_have_text(["marco", "lena", "omar"])
        await expect(page.locator(".heads a")).to_have_count(0)  # their memories ended with the run
        first = page.locator("article.turn").first
        await expect(first.locator(".to")).to_contain_text("marco → lena whispered omar only learns of it")
        await expect(first.locator(".match")).to_have_text("extend")
        await expect(first.locator(".tier")).to_have_text("hot")
        await expect(first.locator(".report")).to_contain_text(CACHE_HIT)
        await expect(first.locator(".report")).to_contain_text("TTFT ")
        assert await first.evaluate("e => e.style.gridColumn") == "1"
        row = page.locator(".lane-row", has=first)
        await expect(row.locator(".mark", has_text="learns that marco whispered")).to_have_css("grid-column-start", "3")
        together = page.locator(".lane-row", has_text="lena → omar").filter(has_text="omar → lena")
        await expect(together).to_have_count(2)
        await expect(page.locator(".outcome").last).to_contain_text("lena")
        await expect(page.locator(".facts")).to_contain_text("7 turns")
        await expect(page.locator(".facts .saved")).to_contain_text("0 computed another time")
        await page.locator(".lanes-box").evaluate("e => e.scrollTo(0, 0)")
        await screenshot(page, "workflow-run")
        await page.get_by_role("link", name="Workflows", exact=True).last.click()
        row = page.locator(".runs tbody tr").first
        await expect(row.locator("td").first).to_contain_text("yard")
        await expect(row.locator(".who")).to_have_text("marco, lena, omar")
        await expect(row).to_contain_text("succeeded")
        await screenshot(page, "workflows")


@pytest.mark.slow
async def test_a_run_that_is_watched_from_its_middle_and_cancelled(browser: Browser, live: Stack) -> None:
    async with opened(browser, live.url, "#/workflows/new") as page, opened(browser, live.url, "#/workflows") as other:
        await run(page, LONG)
        await expect(page.locator("article.turn:not([aria-busy])").nth(2)).to_be_visible()
        await other.get_by_role("button", name="Refresh").click()
        await other.locator(".runs tbody tr").first.get_by_role("link", name="long").click()
        await expect(other.locator("article.turn:not([aria-busy])").nth(2)).to_be_visible()
        await expect(state(other)).to_have_text("running")
        await expect(other.locator(".facts div").filter(has_text="Phase")).to_contain_text("talk")
        await expect(other.locator(".facts")).to_contain_text("Last event")
        await expect(other.locator(".heads a")).to_have_count(2)
        await page.get_by_role("button", name="Cancel…").click()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
        for each in (page, other):
            await expect(state(each)).to_have_text("cancelled")
            await expect(each.locator("article[aria-busy]")).to_have_count(0)
            await expect(each.get_by_role("button", name="Resume")).to_have_count(0)
        assert await lanes(page) == await lanes(other)
        await page.get_by_role("button", name="Delete…").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete for good").click()
        await expect(page.get_by_role("heading", name="Workflows")).to_be_visible()
        await other.reload()
        await expect(other.get_by_role("alert")).to_contain_text("does not exist")


@pytest.mark.slow
async def test_a_run_that_breaks_off_and_goes_on(browser: Browser, stacks: SharedStacks, tmp_path: Path) -> None:
    async with (
        stacks.using(DEMO, "store", "worker", "gateway", killable=True) as stack,
        opened(browser, stack.url, "#/workflows/new") as page,
    ):
        await run(page, LONG.replace("rounds: 60", "rounds: 12"))
        done = page.locator("article.turn:not([aria-busy])")
        await expect(done.nth(3)).to_be_visible()
        stack.kill("gateway")
        await expect(page.get_by_text("Waiting for the gateway")).to_be_visible()
        await stack.renew("gateway")
        await expect(state(page)).to_have_text("interrupted", timeout=30_000)
        await expect(page.locator("article[aria-busy]")).to_have_count(0)
        before = await done.count()
        assert 4 <= before < 24
        await expect(state(page)).to_have_text("succeeded", timeout=60_000)
        await expect(done).to_have_count(24)
        box = page.get_by_role("region", name="What was said")
        assert await box.evaluate("e => e.scrollTop") > 0  # it follows what is resumed
        await expect(page.locator(".facts")).to_contain_text("24 turns")
        there = await lanes(page)
        await page.reload()
        await expect(state(page)).to_have_text("succeeded")
        assert await lanes(page) == there
        assert await box.evaluate("e => e.scrollTop") == 0  # a run that had ended is read from its beginning
