"""One browser and one stack for all tests of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from tests.system.page.browser import launched
from tests.system.shared import DEMO, SharedStacks
from tests.system.stack import Stack


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with launched() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(stacks: SharedStacks) -> AsyncIterator[Stack]:
    async with stacks.using(DEMO, "store", "worker", "gateway") as stack:
        yield stack
