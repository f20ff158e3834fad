"""Answers in the page are Markdown: elements for what it means, text for markup, and links that say where they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from agentmem.v1 import inference_pb2
from tests.gateway.background import served
from tests.gateway.scripted import delta, finished, started
from tests.system.page.browser import opened
from tests.system.page.test_page_for_all import axe, problems

__all__ = ["axe"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = """\
# A title

Some **strong** and *slanted* words, `a < b`,
a [page](https://example.org/a?b=1), [none](javascript:alert(1)),
![a picture](https://example.org/p.png), <b>markup</b>.

1. first
   - [x] done
   - [ ] open
2. second

> said by another

| name | tokens |
|:-----|-------:|
| `x`  | 1      |

```python
def f(x):
    return x < 1 and "*not slanted*"
```

<script>alert(1)</script>
"""
CODE = 'def f(x):\n    return x < 1 and "*not slanted*"'
HOSTILE = (
    ">" * 5000 + " deep",
    "* " * 3000 + "x",
    "[" * 10_000,
    "`" * 9999 + "x",
    "*a_ " * 2500,
    "_a" * 5000,
    "__a__" * 2000,
    "|" * 9000 + "\n|-|\n",
    "<" * 10_000,
    "[a]:" + " " * 9900,
    "a\n" * 30_000,
    "|a" * 1000 + "\n" + "|-" * 1000 + "\n" + "a\n" * 2000,
    " * " * 9999 + "a",
)


@pytest.mark.slow
async def test_what_an_answer_looks_like(browser: Browser, axe: str) -> None:
    async def answer(_: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield started()
        for line in ANSWER.splitlines(keepends=True):
            yield delta(line)
            await asyncio.sleep(0.01)  # some frames, in which tables and listings are not whole
        yield finished()

    with served() as gateway:
        gateway.worker.script = answer
        async with opened(
            browser, gateway.url, "#/talk/demo/writer", permissions=["clipboard-read", "clipboard-write"]
        ) as page:
            await page.get_by_label("Message", exact=True).fill("**Not** Markdown")
            await page.keyboard.press("Enter")
            turn = page.locator("article[data-state=done]")
            said = turn.locator(".markdown")
            await expect(said.locator("h3")).to_have_text("A title")
            await expect(said.locator("strong")).to_have_text("strong")
            await expect(said.locator("p").first.locator("br")).to_have_count(2)
            await expect(said.locator("p code").first).to_have_text("a < b")
            assert await said.locator("a").evaluate_all(
                "all => all.map(a => [a.textContent, a.href, a.target, a.rel])"
            ) == [
                ["page", "https://example.org/a?b=1", "_blank", "noopener noreferrer"],
                ["image: a picture", "https://example.org/p.png", "_blank", "noopener noreferrer"],
            ]
            await expect(said).to_contain_text("[none](javascript:alert(1))")
            await expect(said).to_contain_text("<b>markup</b>")
            await expect(said).to_contain_text("<script>alert(1)</script>")
            await expect(said.locator("ol > li")).to_have_count(2)
            await expect(said.locator("ol ul > li")).to_have_text(["☑ done", "☐ open"])
            await expect(said.locator("blockquote")).to_have_text("said by another")
            await expect(said.locator("td").last).to_have_css("text-align", "right")
            await expect(said.locator("pre")).to_have_text(CODE)
            await expect(turn.locator(".said.user")).to_contain_text("**Not** Markdown")
            await said.get_by_role("button", name="Copy code").click()
            await expect(said.get_by_role("button", name="Copied code")).to_be_visible()
            assert await page.evaluate("navigator.clipboard.readText()") == CODE
            await turn.get_by_role("button", name="Copy answer").click()
            await expect(turn.get_by_role("button", name="Copied answer")).to_be_visible()
            assert await page.evaluate("navigator.clipboard.readText()") == ANSWER
            assert await problems(page, axe) == []
            await page.set_viewport_size({"width": 390, "height": 760})
            assert await page.evaluate("document.querySelector('.log').scrollWidth - innerWidth") <= 0


@pytest.mark.slow
async def test_no_answer_holds_the_page_up(browser: Browser) -> None:
    with served() as gateway:
        async with opened(browser, gateway.url, "#/talk/demo/writer") as page:
            for number, text in enumerate(HOSTILE):

                async def answer(
                    _: inference_pb2.GenerateRequest, text: str = text
                ) -> AsyncIterator[inference_pb2.GenerateResponse]:
                    yield started()
                    for part in range(0, len(text), 1000):
                        yield delta(text[part : part + 1000])
                    yield finished()

                gateway.worker.script = answer
                await page.get_by_label("Message", exact=True).fill("Go on.")
                await page.keyboard.press("Enter")
                await expect(page.locator("article[data-state=done]")).to_have_count(number + 1, timeout=10_000)
