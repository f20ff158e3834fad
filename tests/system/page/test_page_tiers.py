"""An agent's text in the colours of all tiers, as its KV goes from one to the next, down to a real object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from agentmem.v1 import types_pb2
from tests import s3
from tests.system.client import chat
from tests.system.page.browser import opened
from tests.system.page.test_page_agents import act
from tests.system.stack import running
from tests.system.test_remote import uploaded
from tests.tiny_models import write_llama

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "The colour of the boat is green. " * 60


async def shown(page: Page, tier: str) -> None:
    await expect(page.locator(".facts .tier")).to_have_text(tier)
    await expect(page.locator(".strip p .tier")).to_have_text([tier])
    await expect(page.locator(".stretch").first).to_have_class(f"stretch {tier}")
    others = page.locator(f".stretch:not(.{tier})")
    await expect(others).to_have_count(0)


@pytest.mark.slow
async def test_where_the_text_is(
    browser: Browser, bucket: s3.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTMEM_STORE_REMOTE", bucket.location())
    monkeypatch.setenv("AGENTMEM_STORE_REMOTE_ENDPOINT", bucket.endpoint)
    async with running(f"tiny={write_llama(tmp_path / 'm')}", "store", "worker", "gateway") as stack:
        client = await stack.client()
        sampling = types_pb2.Sampling(ignore_eos=True)
        await client.turn("a", messages=chat(("user", TEXT)), max_tokens=8, sampling=sampling)
        await uploaded(stack, "a")
        async with opened(browser, stack.url, "#/agents/tiny/a") as page:
            await page.get_by_label("As the model sees it").check()
            await shown(page, "hot")
            await act(page, "Evict from memory", "Evict")
            await shown(page, "warm")
            await act(page, "Evict from disk", "Evict")
            await shown(page, "remote")
            await page.get_by_role("link", name="Probe").click()
            await page.get_by_label("It is").select_option("append")
            await page.get_by_role("textbox", name="Prompt").fill("And now?")
            await page.get_by_role("button", name="Probe").click()
            await expect(page.locator(".found")).to_contain_text("of KV would be read")
            await page.get_by_role("link", name="Memory").click()
            await page.get_by_label("As the model sees it").check()
            await act(page, "Evict everywhere", "Evict")
            await shown(page, "none")
