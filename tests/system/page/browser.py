"""A real Chromium, and what must be true of the page whatever a test does with it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

from benchmarks.packages import Unavailable
from tests.system.page.chromium import chromium

LAUNCH_SECONDS = 60
IMAGES = Path(__file__).parents[3] / "docs" / "guides" / "images"
CACHE_HIT = re.compile(r"cache hit [1-9][\d,]*/[\d,]+ \(\d+ %\)")
SCREENSHOTS = "AGENTMEM_SCREENSHOTS"
"""The variable that has the tests write the screenshots of the documentation."""
_CONTEXT: Any = {"viewport": {"width": 1200, "height": 760}, "locale": "en-US"}
"""Without a locale a headless Chromium takes that of the environment. Of LANG=C it makes en-US@posix, for which Intl
fails, and so uPlot: no line is drawn, however long a test waits."""
_EXPECTED = "Failed to load resource"
"""The beginning of Chromium's message for each error answer."""


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """A browser. Skips where there is none."""
    try:
        found = await asyncio.to_thread(chromium)
    except Unavailable as problem:
        pytest.skip(f"{problem}; install Debian's chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found.program,
            timeout=LAUNCH_SECONDS * 1000,
            args=["--disable-gpu", "--no-first-run", "--disable-smooth-scrolling", *found.arguments],
            env=found.environment,  # type: ignore[arg-type] - its values may be anything
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def opened(browser: Browser, url: str, place: str = "", **context: object) -> AsyncIterator[Page]:
    """The page of the gateway at `url`. It must ask nobody else, and no script may fail or be stopped by the policy."""
    within = await browser.new_context(**{**_CONTEXT, **context})
    within.set_default_timeout(15_000)
    page = await within.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    try:
        await page.goto(f"{url}/ui/{place}")
        yield page
        assert [each for each in wrong if not each.startswith(_EXPECTED)] == []
        assert [each for each in asked if not each.startswith((f"{url}/", "blob:", "data:"))] == []
    finally:
        await within.close()


def documenting() -> bool:
    return bool(os.environ.get(SCREENSHOTS))


async def screenshot(page: Page, name: str) -> None:
    """Write a picture of the page for the documentation, where that is asked for."""
    if documenting():
        IMAGES.mkdir(exist_ok=True)
        await page.screenshot(path=IMAGES / f"page-{name}.png", animations="disabled", caret="hide")
