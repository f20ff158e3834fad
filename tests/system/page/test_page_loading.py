"""The page while a model loads: it says which one and how far, waits with the turn, and says nothing that is over.

The worker is scripted, for its load has to stand still; the gateway and the browser are real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from agentmem.errors import Unavailable
from agentmem.v1 import inference_pb2, model_pb2
from tests.gateway.background import Served, served
from tests.gateway.scripted import hello
from tests.system.page.browser import opened

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORDS = "loading org/large, 40 %: reading the weights, about 12 s left"


def loads(gateway: Served, loading: bool = True) -> None:
    model = gateway.worker.models[1]
    model.ClearField("progress")
    model.state = model_pb2.MODEL_STATE_LOADING if loading else model_pb2.MODEL_STATE_LOADED
    if loading:
        model.progress.stage, model.progress.share = "read", 0.4
        model.progress.remaining.FromSeconds(12)


@pytest.mark.slow
async def test_a_turn_waits_for_its_model(browser: Browser) -> None:
    with served() as gateway:
        loads(gateway)

        async def unloaded(_: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
            raise Unavailable("model 'org/large' is not loaded yet (read, 40%); try again", retry_after=2.0)
            yield

        gateway.worker.script = unloaded
        async with opened(browser, gateway.url, "#/talk/org%2Flarge/marco") as page:
            await expect(page.get_by_role("status").filter(has_text=WORDS)).to_be_visible()
            await page.get_by_label("Message", exact=True).fill("Hello")
            await page.keyboard.press("Enter")
            await expect(page.locator("article .loading")).to_have_text(f"{WORDS}…")
            async with page.expect_request("**/generate*"):  # the refused turn is sent again
                pass
            gateway.worker.script = hello
            loads(gateway, loading=False)
            await expect(page.locator("article[data-state=done] .said.assistant")).to_contain_text("Hello")
            await expect(page.get_by_text("loading")).to_have_count(0)
        assert len({request.request_id for request in gateway.worker.generated}) == 1


@pytest.mark.slow
async def test_each_view_says_what_loads(browser: Browser) -> None:
    with served() as gateway:
        loads(gateway)
        async with opened(browser, gateway.url, "#/models") as page:
            model = page.get_by_role("article").filter(has_text="org/large")
            await expect(model.get_by_role("status")).to_contain_text(WORDS)
            await expect(model.get_by_role("progressbar")).to_have_attribute("value", "0.4")
            await page.goto(f"{gateway.url}/ui/#/talk/org%2Flarge")
            await expect(page.get_by_role("status").filter(has_text=WORDS)).to_be_visible()

            async def unready(route: Route) -> None:
                told: dict[str, Any] = await (await route.fetch()).json()
                worker = next(each for each in told["processes"] if each["service"] == "worker")
                worker |= {"state": "not_ready", "why": "it says that it is not serving; its log says why"}
                await route.fulfill(json=told)

            await page.route("**/v1/overview", unready)
            await page.goto(f"{gateway.url}/ui/#/overview")
            row = page.get_by_role("region", name="Processes").locator("tr").filter(has_text="worker")
            await expect(row).to_contain_text(WORDS)
            await expect(row).not_to_contain_text("not ready")
            loads(gateway, loading=False)
            await page.goto(f"{gateway.url}/ui/#/models")
            await expect(model.locator(".tier")).to_have_text("loaded")
            await expect(page.get_by_role("progressbar")).to_have_count(0)


@pytest.mark.slow
async def test_a_worker_that_is_gone_and_comes_back(browser: Browser) -> None:
    with served() as gateway:
        async with opened(browser, gateway.url, "nothing") as page:

            async def silent(route: Route) -> None:
                message = "the inference worker cannot be reached; it may be starting again"
                await route.fulfill(status=503, json={"error": {"message": message, "code": "unavailable"}})

            await page.route("**/v1/model-registry*", silent)
            await page.goto(f"{gateway.url}/ui/#/talk")
            await expect(page.get_by_role("alert")).to_contain_text("it may be starting again")
            await page.unroute("**/v1/model-registry*", silent)
            await expect(page.get_by_role("alert")).to_have_count(0)
            await expect(page.get_by_role("combobox", name="Model")).to_have_value("demo")
