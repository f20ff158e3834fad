"""The page searches a hub, pulls a model and talks to it; then the model stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from agentmem.v1 import model_pb2
from tests.inference_service.hub.test_commands import demo, repositories
from tests.model_hub import Hub, Repository, model_hub
from tests.system.page.browser import opened, screenshot
from tests.system.page.test_page_for_all import PHONE, axe, problems
from tests.system.stack import running

__all__ = ["axe"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOW = "mlx-community/Slow-4bit"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The hub of the services that a test starts."""
    with model_hub() as running:
        running.repositories = {**repositories(), SLOW: Repository(demo(), downloads=50, seconds=3.0)}
        for name, value in running.environment(tmp_path).items():
            if name.startswith("HF_") or name == "NO_PROXY":
                monkeypatch.setenv(name, value)
        yield running


@pytest.mark.slow
async def test_a_model_is_found_pulled_and_talked_to(browser: Browser, hub: Hub, axe: str) -> None:
    async with running("demo", "store", "worker", "gateway", under=("runpy",)) as stack:
        async with opened(browser, stack.url, "#/models") as page:
            await page.get_by_role("searchbox").fill("4bit")
            await page.keyboard.press("Enter")
            found = page.get_by_role("region", name="On the hub").get_by_role("article")
            await expect(found).to_have_count(4)
            large, odd = found.filter(has_text="Large"), found.filter(has_text="Odd")
            await expect(large).to_contain_text("does not fit this machine")
            await expect(large.get_by_role("button", name="Pull")).to_be_disabled()
            await expect(odd).to_contain_text("cannot run")
            await expect(found.filter(has_text="Tiny")).to_contain_text("agents of 4,096 tokens")
            slow = found.filter(has_text=SLOW)
            await slow.get_by_role("button", name="Pull").click()
            await expect(slow.get_by_role("status")).to_contain_text(f"downloading {SLOW}, ")
            await expect(slow.get_by_role("progressbar")).to_be_visible()
            await screenshot(page, "pull")
            assert await problems(page, axe) == []
            await slow.get_by_role("button", name="Stop").click()
            await expect(slow.get_by_role("progressbar")).to_have_count(0)
            await slow.get_by_role("button", name="Pull").click()
            await expect(slow.get_by_role("progressbar")).to_be_visible()
            await page.get_by_role("button", name="Search").click()  # neither this nor another view ends it
            await page.get_by_role("link", name="Agents").click()
            await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
            await page.get_by_role("link", name="Models").click()
            await expect(page.get_by_role("heading", name="Models")).to_be_visible()
            await page.get_by_role("searchbox").fill("4bit")
            await page.keyboard.press("Enter")
            await expect(slow.get_by_text("downloaded", exact=True)).to_be_visible(timeout=60_000)
            await expect(slow.get_by_role("button", name="Pull")).to_have_count(0)
            await expect(page.get_by_role("heading", name=SLOW)).to_have_count(2)  # it is listed below, too
            await page.set_viewport_size(PHONE["viewport"])
            assert await page.evaluate("document.querySelector('main').scrollWidth - innerWidth") <= 0
            await slow.get_by_role("link", name="Talk").click()
            await expect(page.get_by_role("combobox", name="Model")).to_have_value(SLOW)
            await page.get_by_label("Message", exact=True).fill("The key is in the cellar.")
            await page.get_by_role("button", name="Send").click()
            await expect(page.locator("article[data-state=done]")).to_contain_text("cellar", timeout=60_000)
        stack.kill("worker")
        await stack.up("worker")
        client = await stack.client()
        listed = (await client.models.ListModels(model_pb2.ListModelsRequest())).models
        assert [model.model_id for model in listed] == ["demo", SLOW]
