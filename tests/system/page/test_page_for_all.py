"""Whom the page might shut out: axe-core looks at each view, in light and dark, and a phone shows all of it."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from benchmarks.packages import Tarball, Unavailable, kept
from gateway.workflows.run import workflow_id_of
from tests.system.client import Client
from tests.system.page.browser import IMAGES, documenting, opened, screenshot
from tests.system.page.test_page_workflows import YARD
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = Tarball(
    "axe-core", "4.14.1", "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)
RUN = workflow_id_of("default", "for all")
PLACES = {
    "#/agents": "tbody tr[data-row]",
    "#/agents/demo/reader": "ol.turns .said",
    "#/agents/demo/reader/branches": ".tree li >> nth=1",
    "#/agents/demo/reader/probe": "textarea",
    "#/overview": ".uplot",
    "#/workflows": ".runs tbody tr",
    "#/workflows/new": "textarea",
    f"#/workflows/run/{RUN}": ".outcome",
    "#/models": "article",
    "#/talk": "ul.recent li",
    "#/talk/demo/reader?beside=reader-fork": "article >> nth=1",
}
"""The views, and what is there once they are."""
PICTURED = {
    "agents": "#/agents",
    "memory": "#/agents/demo/reader",
    "talk": "#/talk/demo/reader?beside=reader-fork",
    "workflow-run": f"#/workflows/run/{RUN}",
    "models": "#/models",
    "overview": "#/overview",
}
"""Views of which the documentation has pictures: light, and by these tests dark and on a phone."""
BEYOND = """() => [...document.querySelectorAll('body *')]
    .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1)
    .filter((e) => !e.closest('.scrolls, .rows, .lanes-box, pre, .unseen'))
    .map((e) => e.outerHTML.slice(0, 80))"""
"""Elements that reach over the edge of the screen, except in what scrolls by itself."""
COVERED = """() => [...document.querySelectorAll('button, a, textarea')].filter((e) => {
    const {left, top, width, height} = e.getBoundingClientRect();
    const [x, y] = [left + width / 2, top + height / 2];
    return e.checkVisibility() && document.elementFromPoint(x, y)?.closest('.notice');
}).filter((e) => !e.closest('.notice')).map((e) => e.outerHTML.slice(0, 80))"""
"""Controls that lie under a notice."""
PHONE = {"viewport": {"width": 390, "height": 760}}


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core. Skips where it cannot be fetched."""

    def script(scratch: Path) -> Path:
        with tarfile.open(AXE.fetch(scratch)) as archive:
            archive.extract("package/axe.min.js", scratch, filter="data")
        return scratch / "package" / "axe.min.js"

    try:
        return kept("npm-tools", f"axe-{AXE.version}.js", script).read_text(encoding="utf-8")
    except Unavailable as problem:
        pytest.skip(f"axe-core: {problem}")


async def remembers(live: Stack) -> Client:
    """A client, once reader has a memory, a snapshot and a fork."""
    client = await live.client()
    if (await client.say("reader", "The colour of the boat is green.", max_tokens=20)).finished.version.version == 1:
        await client.snapshot("reader", "before")
        await client.fork("reader", "reader-fork")
        headers = {"idempotency-key": "for all"}
        async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=120) as http:
            answer = await http.post("/v1/workflows", json={"definition_yaml": YARD})
            assert "succeeded" in answer.text
    return client


async def picture(page: Page, place: str, kind: str) -> None:
    """Write a picture of a view that is pictured, where that is asked for."""
    name = next((name for name, each in PICTURED.items() if each == place), "")
    if name and documenting():
        await page.wait_for_timeout(
            5000 if name == "overview" else 300
        )  # it has some points, and words have their place
        await screenshot(page, f"{name}-{kind}")


async def problems(page: Page, axe: str, rules: Sequence[str] = ()) -> list[str]:
    """Return axe-core's findings, by all of its rules or by some."""
    await page.evaluate(axe)  # by the debugger, past the page's policy, which allows no scripts but its own
    how: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        how["runOnly"] = {"type": "rule", "values": list(rules)}
    found: list[dict[str, Any]] = (await page.evaluate("how => axe.run(document, how)", how))["violations"]
    return [f"{one['id']}: {json.dumps([node['html'][:200] for node in one['nodes'][:3]])}" for one in found]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "size"), [("light", {}), ("dark", {}), ("light", PHONE)], ids=str)
async def test_axe_finds_nothing(browser: Browser, live: Stack, axe: str, scheme: str, size: dict[str, Any]) -> None:
    await remembers(live)
    rules = () if scheme == "light" else ("color-contrast",)  # the rest is the same in both
    async with opened(browser, live.url, color_scheme=scheme, **size) as page:
        for place, there in PLACES.items():
            await page.goto(f"{live.url}/ui/{place}")
            await page.wait_for_selector(there)
            assert await problems(page, axe, rules) == [], place
            if scheme == "dark":
                await picture(page, place, "dark")
        await page.goto(f"{live.url}/ui/#/talk/demo/reader")
        await page.get_by_text("Settings", exact=True).click()
        await page.get_by_role("button", name="Edit").last.click()
        assert await problems(page, axe, rules) == [], "settings, and a message that is edited"
        await page.goto(f"{live.url}/ui/#/agents/demo/reader")
        await page.get_by_text("Actions", exact=True).click()
        assert await problems(page, axe, rules) == [], "the menu"
        await page.get_by_role("button", name="Delete…").click()
        assert await problems(page, axe, rules) == [], "the question before a deletion"


@pytest.mark.slow
async def test_axe_would_find_something(browser: Browser, live: Stack, axe: str) -> None:
    async with opened(browser, live.url) as page:
        await page.evaluate("document.querySelector('main').innerHTML = '<input><a href=\"#\"></a>'")
        found = await problems(page, axe, ["label", "link-name", "image-alt"])
        assert {each.partition(":")[0] for each in found} == {"label", "link-name"}
        assert [each.partition(":")[0] for each in await problems(page, axe, ["label"])] == ["label"]


@pytest.mark.slow
async def test_a_phone_shows_all_of_it(browser: Browser, live: Stack) -> None:
    await remembers(live)
    async with opened(browser, live.url, **PHONE) as page:
        for place, there in PLACES.items():
            await page.goto(f"{live.url}/ui/{place}")
            await page.wait_for_selector(there)
            wide = "[document.scrollingElement, document.querySelector('main')].map(e => e.scrollWidth - e.clientWidth)"
            assert await page.evaluate(wide) == [0, 0], place
            assert await page.evaluate(BEYOND) == [], place
            await picture(page, place, "phone")


@pytest.mark.slow
async def test_no_notice_lies_over_a_button(browser: Browser, live: Stack) -> None:
    await remembers(live)
    async with opened(browser, live.url, "#/agents/demo/reader", **PHONE) as page:
        for verb in ("Pin", "Unpin", "Prefetch"):
            await page.get_by_text("Actions", exact=True).click()
            await page.get_by_role("button", name=f"{verb}…", exact=True).click()
            await page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
            await expect(page.get_by_role("dialog")).to_have_count(0)
        for place in ("#/agents/demo/reader", "#/talk", "#/talk/demo/reader", "#/agents"):
            await page.goto(f"{live.url}/ui/{place}")
            await page.wait_for_selector(PLACES.get(place, "article"))
            await expect(page.locator(".notice").first).to_be_visible()
            assert await page.evaluate(COVERED) == [], place


async def test_the_documentation_has_all_pictures() -> None:
    guide = (IMAGES.parent / "page.md").read_text(encoding="utf-8")
    for name in PICTURED:
        for kind in ("", "-dark", "-phone"):
            assert f"](images/page-{name}{kind}.png)" in guide
            assert (IMAGES / f"page-{name}{kind}.png").is_file()
    shown = set(re.findall(r"\]\(images/(page-[a-z-]+\.png)\)", guide))
    assert not [name for name in shown if not (IMAGES / name).is_file()]


@pytest.mark.slow
async def test_light_and_dark_are_a_choice(browser: Browser, live: Stack) -> None:
    async with opened(browser, live.url, color_scheme="light") as page:
        ground = page.locator("html")
        light = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        await page.get_by_label("Theme").select_option("dark")
        await expect(ground).not_to_have_css("background-color", light)
        await page.reload()
        await expect(page.get_by_label("Theme")).to_have_value("dark")
        await page.get_by_label("Theme").select_option("system")
        await expect(ground).to_have_css("background-color", light)
